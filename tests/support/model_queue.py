"""A queue in plain Python: what Holdfast promises, written down without a database.

It is slow, small and obvious. `test_state_machine.py` does the same random things to it and to Holdfast.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import SECOND
from holdfast.testing import FakeClock

WAITING = frozenset({"scheduled", "ready"})
LIVE = WAITING | {"running"}
RETRIABLE = frozenset({"failed", "cancelled"})


@dataclass
class Entry:
    """A job or message, as it should be."""

    id: int
    queue: str
    task: str | None  # None: a message
    body: Any
    priority: int
    run_at: int
    created_at: int
    max_attempts: int
    key: str | None
    history: bool
    status: str
    attempt: int = 0
    uncounted: int = 0
    lease_ends: int | None = None
    finished_at: int | None = None
    result: str | None = None
    outcomes: dict[int, str | None] = field(default_factory=dict)  # of each attempt; None while it runs
    log: list[tuple[str, int]] = field(default_factory=list)  # event and attempt

    @property
    def row(self) -> tuple[Any, ...]:
        return (
            self.queue,
            self.task,
            self.status,
            self.attempt,
            self.max_attempts,
            self.priority,
            self.run_at,
            self.created_at,
            self.finished_at,
            self.lease_ends,
            self.key,
            self.history,
            self.result,
        )


class Model:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.entries: dict[int, Entry] = {}
        self.paused: set[str] = set()
        self.fresh: Counter[tuple[int | None, str, int | None]] = Counter()  # events since they were last looked at
        self.reached: Counter[str] = Counter()

    # --- into the queue ---

    def holders(self, queue: str, task: str | None, key: str | None, window: float | None) -> set[int]:
        """The jobs of which an enqueue with this key must return one: the live one, else the last that ended."""
        if key is None:
            return set()
        same = [
            one
            for one in self.entries.values()
            if one.key == key and one.task == task and (task is not None or one.queue == queue)
        ]
        live = {one.id for one in same if one.status in LIVE}
        if live or window is None:
            return live
        ended = [one for one in same if one.finished_at is not None]
        recent = [one for one in ended if one.finished_at > self.clock.now() - round(window * SECOND)]  # type: ignore[operator]
        last = max((one.finished_at or 0 for one in recent), default=None)
        return {one.id for one in recent if one.finished_at == last}

    def add(self, id: int, *, delay: float = 0, **values: Any) -> Entry:
        assert id not in self.entries
        now = self.clock.now()
        run_at = now + round(delay * SECOND)
        status = "scheduled" if run_at > now else "ready"
        one = self.entries[id] = Entry(id=id, run_at=run_at, created_at=now, status=status, **values)
        self._write(one, "enqueued")
        return one

    def replace(self, id: int, *, body: Any, delay: float, priority: int, max_attempts: int) -> None:
        """Only what waits can be replaced."""
        one = self.entries[id]
        if one.status not in WAITING:
            self.reached[f"not replaced: {one.status}"] += 1
            return
        one.body, one.priority, one.max_attempts = body, priority, max(max_attempts, one.attempt + 1)
        self._wait(one, delay, "replaced")

    # --- by the clock ---

    def sweep(self) -> None:
        for one in self.entries.values():
            if one.status == "scheduled" and one.run_at <= self.clock.now():
                one.status = "ready"
                self._write(one, "promoted")
            elif one.lease_ends is not None and one.lease_ends <= self.clock.boot_now():
                self.reached["recovered"] += 1
                if one.attempt < one.max_attempts:
                    self._end_attempt(one, "recovered")
                    one.status, one.run_at = "ready", max(one.run_at, self.clock.now())
                    self._write(one, "recovered")
                else:
                    self._end(one, "failed")

    def reboot(self) -> None:
        """Every lease was on the clock of the last boot."""
        for one in self.entries.values():
            if one.status == "running":
                one.lease_ends = 0

    # --- ready -> running ---

    def claim(
        self, queues: Sequence[str] | None, tasks: Collection[str | None], limit: int, lease: float
    ) -> list[Entry]:
        self.sweep()
        takable = [
            one
            for one in self.entries.values()
            if one.status == "ready"
            and one.task in tasks
            and (queues is None or one.queue in queues)
            and one.queue not in self.paused
        ]
        # Queue by queue, in the order in which they are named.
        place = {name: number for number, name in reversed(list(enumerate(queues or [])))}
        taken = sorted(takable, key=lambda one: (place.get(one.queue, 0), -one.priority, one.id))[:limit]
        for one in taken:
            one.status, one.attempt = "running", one.attempt + 1
            one.lease_ends = self.clock.boot_now() + round(lease * SECOND)
            if one.history:
                one.outcomes[one.attempt] = None
            self._write(one, "claimed")
        return taken

    # --- out of running ---

    def holds(self, id: int, attempt: int) -> bool:
        """Whether this attempt may still write: the fence."""
        one = self.entries.get(id)
        return one is not None and one.status == "running" and one.attempt == attempt

    def _may(self, id: int, attempt: int) -> bool:
        held, one = self.holds(id, attempt), self.entries.get(id)
        self.reached["settled" if held else "fenced"] += 1
        self.reached["fenced by a newer attempt"] += not held and one is not None and one.status == "running"
        return held

    def succeed(self, id: int, attempt: int, result: str | None = None) -> bool:
        if not self._may(id, attempt):
            return False
        one = self.entries[id]
        if not one.history:
            del self.entries[id]
            return True
        one.result = result
        self._end(one, "succeeded")
        return True

    def give_back(self, id: int, attempt: int, delay: float, event: str) -> bool:
        """release and retry: the attempt counts, and the last one is the end."""
        if not self._may(id, attempt):
            return False
        one = self.entries[id]
        if one.attempt < one.max_attempts:
            self._wait(one, delay, event)
        else:
            self._end(one, "failed")
        return True

    def snooze(self, id: int, attempt: int, delay: float) -> bool:
        if not self._may(id, attempt):
            return False
        one = self.entries[id]
        one.max_attempts += 1
        one.uncounted += 1
        self._wait(one, delay, "snoozed")
        return True

    def settle_as(self, status: str, id: int, attempt: int) -> bool:
        if not self._may(id, attempt):
            return False
        self._end(self.entries[id], status)
        return True

    def extend(self, id: int, attempt: int, seconds: float) -> bool:
        if not self._may(id, attempt):
            return False
        self.entries[id].lease_ends = self.clock.boot_now() + round(seconds * SECOND)
        return True

    # --- by an operator: how many were changed ---

    def requeue(self, ids: Iterable[int], delay: float, attempts: int | None = None) -> int:
        changed = 0
        for one in self._known(ids):
            taken = self.holders(one.queue, one.task, one.key, window=None)
            if one.status not in RETRIABLE:
                continue
            if taken:
                self.reached["requeue refused: key taken"] += 1
                continue
            more = max(1, one.max_attempts - one.uncounted) if attempts is None else attempts
            raised = max(one.max_attempts, one.attempt + more)
            one.uncounted += raised - one.max_attempts
            one.max_attempts = raised
            one.finished_at, one.result = None, None
            self._wait(one, delay, "requeued")
            changed += 1
        return changed

    def cancel(self, ids: Iterable[int]) -> int:
        stoppable = [one for one in self._known(ids) if one.status in LIVE]
        for one in stoppable:
            self.reached[f"cancelled {one.status}"] += 1
            self._end(one, "cancelled")
        return len(stoppable)

    def run_now(self, ids: Iterable[int]) -> int:
        waiting = [one for one in self._known(ids) if one.status == "scheduled"]
        for one in waiting:
            self._wait(one, 0, "run_now")
        return len(waiting)

    def remove(self, ids: Iterable[int], note: str) -> int:
        """`deleted` spares what is running, `purged` does not."""
        gone = [one for one in self._known(ids) if note == "purged" or one.status != "running"]
        for one in gone:
            self.reached[f"{note} {one.status}"] += 1
            del self.entries[one.id]
        if gone:
            self.fresh[(None, note, None)] += 1
        return len(gone)

    def pause(self, queue: str, paused: bool) -> bool:
        if (queue in self.paused) == paused:
            return False
        (self.paused.add if paused else self.paused.discard)(queue)
        self.fresh[(None, "paused" if paused else "resumed", None)] += 1
        return True

    # --- looking ---

    def messages(self, queue: str, status: str | None = None) -> list[Entry]:
        """Oldest first."""
        found = [one for one in self.entries.values() if one.task is None and one.queue == queue]
        return sorted((one for one in found if status in (None, one.status)), key=lambda one: one.id)

    def _known(self, ids: Iterable[int]) -> list[Entry]:
        return [self.entries[id] for id in sorted(set(ids)) if id in self.entries]

    # --- the two ways out of where it is: to wait, or to end ---

    def _wait(self, one: Entry, delay: float, event: str) -> None:
        self._end_attempt(one, event)
        one.run_at = self.clock.now() + round(delay * SECOND)
        one.status = "scheduled" if one.run_at > self.clock.now() else "ready"
        self._write(one, event)

    def _end(self, one: Entry, status: str) -> None:
        self._end_attempt(one, status)
        one.status, one.finished_at = status, self.clock.now()
        if status == "failed":
            self.reached["dead letter" if one.task is None else "failed task"] += 1
        self._write(one, status)

    def _end_attempt(self, one: Entry, outcome: str) -> None:
        if one.status == "running" and one.history:
            one.outcomes[one.attempt] = outcome
        one.lease_ends = None

    def _write(self, one: Entry, event: str) -> None:
        self.reached[event] += 1
        if one.history:
            one.log.append((event, one.attempt))
            self.fresh[(one.id, event, one.attempt)] += 1
