"""A machine that does random things to Holdfast and to a plain model of it, and compares them after each."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast import Message, Queue
from holdfast.clock import SECOND
from holdfast.errors import JobNotFound
from holdfast.failure import Failure
from holdfast.model.job import Lease
from holdfast.store import statistics
from holdfast.testing import FakeClock
from support import model_checks
from support.backend import Backend
from support.model_queue import LIVE, RETRIABLE, Entry, Model
from support.operations import (
    QUEUES,
    TASKS,
    any_operation,
    delays,
    keys,
    operation,
    passing,
    picks,
    priorities,
    queue_names,
    task_names,
    verbs,
)
from support.transitions import claim_tasks, extend, fail, promote, recover, release, retry, snooze, stop, succeed

THERE = LIVE | {"failed"}  # what a queue still has; the rest is history
FITTING = {"retry": RETRIABLE, "cancel": LIVE, "run_now": {"scheduled"}}


class QueueMachine(RuleBasedStateMachine):
    reached: ClassVar[Counter[str]] = Counter()  # in all runs together
    kind: ClassVar[type[Backend]]
    template: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="holdfast-model-")
        self.backend = self.kind(Path(self.folder), self.template)
        self.clock, self.boots, self.count, self.cursor = FakeClock(), 1, 0, 0
        self.model = Model(self.clock)
        self.ids: list[int] = []  # every id there ever was
        self.leases: list[tuple[Entry, int, Message[Any] | None]] = []  # every claim there ever was
        self.open()
        for name in QUEUES:
            self.send_many(name, 3, 0, 0, True)
        for task in TASKS:
            self.enqueue_many(task, 2, 0)

    def open(self) -> None:
        self.app = self.backend.open(durability="normal", clock=self.clock)
        self.reader = self.backend.connect()
        self.tasks: dict[str, Any] = {}
        for name, (queue, max_attempts) in TASKS.items():
            self.tasks[name] = self.app.task(name=name, queue=queue, max_attempts=max_attempts)(lambda n: n)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        found = self.backend.execute(self.reader, statement, values)
        self.reader.commit()
        return found

    def teardown(self) -> None:
        self.reader.close()
        self.backend.close()
        shutil.rmtree(self.folder)
        QueueMachine.reached += self.model.reached

    def queue(self, name: str, history: bool = True) -> Queue[Any]:
        visibility, max_attempts = QUEUES[name]
        return self.app.queue(name, visibility=visibility, max_attempts=max_attempts, history=history)

    def body(self) -> dict[str, int]:
        self.count += 1
        return {"n": self.count}

    def added(self, id: int, **values: Any) -> None:
        assert id > max(self.ids, default=0), "an id came back, or ids do not grow"
        self.ids.append(id)
        self.model.add(id, **values)

    @rule(operation=st.deferred(any_operation))
    def step(self, operation: tuple[str, dict[str, Any]]) -> None:
        before = set(self.model.reached)
        name, arguments = operation
        getattr(self, name)(**arguments)
        for what in self.model.reached.keys() - before:
            event(what)

    # --- into the queue ---

    @operation(2, name=queue_names, delay=delays, priority=priorities, key=keys, history=st.booleans())
    def send(self, name: str, delay: float, priority: int, key: str | None, history: bool) -> None:
        body = self.body()
        holders = self.model.holders(name, None, key, window=None)
        sent = self.queue(name, history).send(body, delay=delay, priority=priority, key=key)
        if holders:
            self.model.reached["deduplicated"] += 1
            assert sent in holders
        else:
            self.added(sent, **self.message(name, body, priority, history), delay=delay, key=key)

    @operation(2, name=queue_names, count=st.integers(0, 4), delay=delays, priority=priorities, history=st.booleans())
    def send_many(self, name: str, count: int, delay: float, priority: int, history: bool) -> None:
        bodies = [self.body() for _ in range(count)]
        sent = self.queue(name, history).send_many(bodies, delay=delay, priority=priority)
        assert len(sent) == count
        for id, body in zip(sent, bodies, strict=True):
            self.added(id, **self.message(name, body, priority, history), delay=delay, key=None)

    @operation(1, name=queue_names, count=st.integers(1, 3), commit=st.booleans())
    def send_in_a_transaction(self, name: str, count: int, commit: bool) -> None:
        bodies, sent = [self.body() for _ in range(count)], []
        try:
            with self.app.transaction() as tx:
                sent = [self.queue(name).send(body, conn=tx) for body in bodies]
                assert commit
        except AssertionError:
            self.model.reached["rolled back"] += 1
            return
        for id, body in zip(sent, bodies, strict=True):
            self.added(id, **self.message(name, body, 0, True), key=None)

    def message(self, name: str, body: Any, priority: int, history: bool) -> dict[str, Any]:
        values = {"queue": name, "task": None, "body": body, "priority": priority, "history": history}
        return values | {"max_attempts": QUEUES[name][1]}

    @operation(
        7,
        task=task_names,
        delay=delays,
        priority=priorities,
        key=st.sampled_from([None, "k1", "k1", "k1"]),
        replace=st.booleans(),
        window=st.sampled_from([None, 100, 5]),
        most=st.sampled_from([2, 1, 4]),
    )
    def enqueue(
        self, task: str, delay: float, priority: int, key: str | None, replace: bool, window: float | None, most: int
    ) -> None:
        body, queue = self.body(), TASKS[task][0]
        options: dict[str, Any] = {"delay": delay, "priority": priority, "max_attempts": most}
        if key is not None:
            options |= {"key": key, "on_conflict": "replace" if replace else "return"}
            options |= {} if window is None else {"key_window": window}
        holders = self.model.holders(queue, task, key, window)
        job = self.tasks[task].using(**options).enqueue(**body)
        assert job.deduplicated == bool(holders)
        if not holders:
            values = {"queue": queue, "task": task, "body": body, "priority": priority, "history": True}
            self.added(job.id, **values, delay=delay, key=key, max_attempts=most)
        else:
            self.model.reached["deduplicated"] += 1
            assert job.id in holders
            if replace:
                self.model.replace(job.id, body=body, delay=delay, priority=priority, max_attempts=most)
        held = self.model.entries[job.id]
        assert (job.status, job.attempt, job.args) == (held.status, held.attempt, held.body)

    @operation(3, task=task_names, count=st.integers(1, 3), priority=priorities)
    def enqueue_many(self, task: str, count: int, priority: int) -> None:
        bodies, (queue, most) = [self.body() for _ in range(count)], TASKS[task]
        ids = self.tasks[task].using(priority=priority).enqueue_many(bodies)
        for id, body in zip(ids, bodies, strict=True):
            values = {"queue": queue, "task": task, "body": body, "priority": priority, "history": True}
            self.added(id, **values, key=None, max_attempts=most)

    # --- ready -> running ---

    @operation(
        6, name=queue_names, limit=st.integers(1, 4), visibility=st.sampled_from([None, None, None, 100, 1, 0])
    )
    def receive(self, name: str, limit: int, visibility: float | None) -> None:
        queue = self.queue(name)
        if limit == 1:
            one = queue.receive(visibility=visibility)
            got = [] if one is None else [one]
        else:
            got = queue.receive_many(limit, visibility=visibility)
        lease = QUEUES[name][0] if visibility is None else visibility
        expected = self.model.claim([name], [None], limit, lease)
        assert [(m.id, m.attempt, m.body) for m in got] == [(e.id, e.attempt, e.body) for e in expected]
        self.leases += [(entry, entry.attempt, message) for entry, message in zip(expected, got, strict=True)]

    @operation(
        5,
        queues=st.sampled_from([None, ["a"], ["b"], ["b", "a"]]),
        tasks=st.sampled_from([["mend"], ["knit"], ["mend", "knit"]]),
        limit=st.integers(1, 3),
        lease=st.sampled_from([30, 30, 5, 0]),
    )
    def claim_tasks(self, queues: list[str] | None, tasks: list[str], limit: int, lease: float) -> None:
        got = claim_tasks(self.app.store, queues, tasks, limit, round(lease * SECOND), "worker")
        expected = self.model.claim(queues, tasks, limit, lease)
        assert [(c.id, c.attempt, json.loads(c.args)) for c in got] == [(e.id, e.attempt, e.body) for e in expected]
        self.leases += [(entry, entry.attempt, None) for entry in expected]

    # --- out of running, by the newest holder or by one that came too late ---

    @operation(
        8,
        picks=st.lists(st.integers(0, 5), min_size=1, max_size=3),
        late=st.booleans(),
        by_id=st.booleans(),
        verb=verbs,
        seconds=delays,
    )
    def settle(self, picks: list[int], late: bool, by_id: bool, verb: str, seconds: float) -> None:
        for pick in picks:
            leases = self.leases if late else [one for one in self.leases if self.model.holds(one[0].id, one[1])]
            if not leases:
                return
            entry, attempt, message = leases[-1 - pick % len(leases)]
            if entry.task is not None or verb in ("retry", "stop", "snooze"):
                self.settle_by_the_store(verb, entry, attempt, seconds)
            else:
                self.settle_by_the_queue(verb, entry, attempt, seconds, None if by_id else message)

    def settle_by_the_queue(
        self, verb: str, entry: Entry, attempt: int, seconds: float, message: Message[Any] | None
    ) -> None:
        model, queue, who = self.model, self.queue(entry.queue, entry.history), (entry.id, attempt)
        if verb == "extend":
            done = queue.extend(*who, seconds) if message is None else message.extend(seconds)
            assert done == (model.extend(*who, seconds) if seconds else model.give_back(*who, 0, "released"))
        elif verb == "extend 0":
            done = queue.extend(*who, 0) if message is None else message.extend(0)
            assert done == model.give_back(*who, 0, "released")
        elif verb == "release":
            done = queue.release(*who, seconds) if message is None else message.release(seconds)
            assert done == model.give_back(*who, seconds, "released")
        elif verb == "fail":
            done = queue.fail(*who, "INVALID_INPUT") if message is None else message.fail("INVALID_INPUT", "no")
            assert done == model.settle_as("failed", *who)
        else:
            done = queue.ack(*who) if message is None else message.ack()
            assert done == model.succeed(*who)

    def settle_by_the_store(self, verb: str, entry: Entry, attempt: int, seconds: float) -> None:
        model, store, who, delay = self.model, self.app.store, (entry.id, attempt), round(seconds * SECOND)
        lease, failure = Lease(*who, entry.history), Failure("DEPENDENCY:LOOM", "torn", "f1", "Traceback …")
        pairs: dict[str, Callable[[], tuple[bool, bool]]] = {
            "ack": lambda: (succeed(store, lease, "42"), model.succeed(*who, "42")),
            "extend": lambda: (extend(store, lease, delay), model.extend(*who, seconds)),
            "extend 0": lambda: (extend(store, lease, 0), model.extend(*who, 0)),
            "release": lambda: (release(store, lease, delay), model.give_back(*who, seconds, "released")),
            "retry": lambda: (retry(store, lease, delay, failure), model.give_back(*who, seconds, "retry_scheduled")),
            "fail": lambda: (fail(store, lease, failure), model.settle_as("failed", *who)),
            "stop": lambda: (stop(store, lease, "gone"), model.settle_as("cancelled", *who)),
            "snooze": lambda: (snooze(store, lease, delay), model.snooze(*who, seconds)),
        }
        done, expected = pairs[verb]()
        assert done == expected

    @operation(5, task=st.booleans(), name=queue_names, verb=verbs, seconds=delays)
    def handle(self, task: bool, name: str, verb: str, seconds: float) -> None:
        """Take one and settle it at once, as most consumers do."""
        before = len(self.leases)
        if task:
            self.claim_tasks(None, sorted(TASKS), 1, 30)
        else:
            self.receive(name, 1, None)
        self.settle([0] * (len(self.leases) - before), True, True, verb, seconds)

    @operation(4, task=st.booleans(), name=queue_names, verb=verbs, seconds=delays, passed=passing)
    def be_overtaken(self, task: bool, name: str, verb: str, seconds: float, passed: float) -> None:
        """Take one and dawdle; others take what they can meanwhile; then settle it."""
        before = len(self.leases)
        for _ in range(2):
            if task:
                self.claim_tasks(None, sorted(TASKS), 2, 5)
            else:
                self.receive(name, 2, 5)
            self.clock.advance(passed)
        if len(self.leases) > before:
            self.settle([len(self.leases) - before - 1], True, True, verb, seconds)

    # --- time, and the machine ---

    @operation(4, seconds=passing, set_by=st.sampled_from([0, 0, 0, -3600, -5, 5, 3600]))
    def time_passes(self, seconds: float, set_by: float) -> None:
        """Perhaps somebody sets the wall clock as well."""
        self.clock.advance(seconds)
        self.clock.step(set_by)

    @operation(1, reboot=st.booleans(), clean=st.booleans())
    def restart(self, reboot: bool, clean: bool) -> None:
        """Close and open again, perhaps after a reboot; the log of an unclean stop is still there."""
        stay = self.backend.connect() if not clean else None
        if stay is not None:
            self.backend.execute(stay, "SELECT count(*) FROM holdfast_jobs")
        self.reader.close()
        self.app.close()
        if reboot and self.backend.ends_leases_at_boot:
            self.boots += 1
            self.clock.reboot(f"boot-{self.boots}")
            self.model.reboot()
            self.model.reached["rebooted"] += 1
        self.open()
        if stay is not None:
            stay.close()
        # A consumer that lived through it knows only ids and attempts.
        self.leases = [(entry, attempt, None) for entry, attempt, _ in self.leases]

    @operation(1)
    def sweep(self) -> None:
        promote(self.app.store)
        recover(self.app.store)
        self.model.sweep()

    @operation(2, most=st.sampled_from([1, 5, 20_000]))
    def fold(self, most: int) -> None:
        """As a worker does; here only so many events at a time."""
        with mock.patch.object(statistics, "FOLD_EVENTS", most):
            if self.app.store.statistics.fold():
                self.model.reached["folded"] += 1

    # --- by an operator ---

    @operation(3, name=queue_names, some=st.booleans(), pick=picks, delay=delays)
    def requeue(self, name: str, some: bool, pick: int, delay: float) -> None:
        dead = [one.id for one in self.model.messages(name, "failed")]
        ids = [self.any_id(pick), self.any_id(pick + 1)] if some and self.ids else None
        wanted = dead if ids is None else [id for id in ids if id in dead]
        assert self.queue(name).requeue(ids, delay=delay) == self.model.requeue(wanted, delay)

    @operation(2, name=queue_names, dead_only=st.booleans())
    def purge(self, name: str, dead_only: bool) -> None:
        gone = [one.id for one in self.model.messages(name) if one.status in ({"failed"} if dead_only else THERE)]
        assert self.queue(name).purge(dead_only=dead_only) == self.model.remove(gone, "purged")

    @operation(1, name=queue_names, paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, name: str, paused: bool) -> None:
        queue = self.queue(name)
        assert (queue.pause() if paused else queue.resume()) == self.model.pause(name, paused)

    @operation(
        4,
        pick=picks,
        fitting=st.booleans(),
        verb=st.sampled_from(["retry", "cancel", "run_now", "delete"]),
        delay=delays,
    )
    def operate_on_one(self, pick: int, fitting: bool, verb: str, delay: float) -> None:
        fits = [one.id for one in self.model.entries.values() if one.status in FITTING.get(verb, (one.status,))]
        ids = fits if fitting else self.ids
        if not ids:
            return
        id, jobs, model = ids[-1 - pick % len(ids)], self.app.jobs, self.model
        pairs: dict[str, tuple[Callable[[], bool], Callable[[], int]]] = {
            "retry": (lambda: jobs.retry(id, delay=delay, attempts=2), lambda: model.requeue([id], delay, 2)),
            "cancel": (lambda: jobs.cancel(id, reason="no"), lambda: model.cancel([id])),
            "run_now": (lambda: jobs.run_now(id), lambda: model.run_now([id])),
            "delete": (lambda: jobs.delete(id), lambda: model.remove([id], "deleted")),
        }
        known = id in model.entries
        act, expect = pairs[verb]
        try:
            assert act() == bool(expect())
            assert known
        except JobNotFound:
            assert not known

    @operation(1, name=queue_names, verb=st.sampled_from(["retry", "cancel", "run_now"]))
    def operate_on_many(self, name: str, verb: str) -> None:
        jobs, model, everything = self.app.jobs, self.model, list(self.model.entries.values())
        here = [one for one in everything if one.queue == name]
        if verb == "retry":
            wanted = [one.id for one in here if one.status in RETRIABLE and one.task]
            done = jobs.retry(queue=name, status=sorted(RETRIABLE), task=sorted(TASKS))
            assert done == model.requeue(wanted, 0)
        elif verb == "cancel":
            assert jobs.cancel(queue=name, key=["k1"]) == model.cancel([one.id for one in here if one.key == "k1"])
        else:
            assert jobs.run_now(queue=name) == model.run_now([one.id for one in here])

    def any_id(self, pick: int) -> int:
        return self.ids[-1 - pick % len(self.ids)]

    @invariant()
    def both_agree(self) -> None:
        model_checks.jobs_are_as_in_the_model(self.rows, self.model)
        for name in QUEUES:
            model_checks.stats_are_as_in_the_model(self.queue(name), self.model)
        self.cursor = model_checks.a_follower_sees_every_event_once(self.rows, self.model, self.cursor)
        model_checks.the_log_replays_to_the_current_status(self.rows, self.model)
        model_checks.attempts_are_as_in_the_model(self.rows, self.model)
        model_checks.counts_are_as_in_the_model(self.app, self.model)
        self.backend.check_consistency()
