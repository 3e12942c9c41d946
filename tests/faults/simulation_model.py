"""What must hold after every commit of a simulation: a model of each job, moved by the events of the log.

The model knows what no process knows: which process is alive, which handler has really run, what was acknowledged,
and what an operator has asked for. Each commit is read by a connection of its own, before any other step.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .simulation_machine import SECOND_NS, Machine, Process, SimulatedConnection

CRON_LABEL = 0
WITH_EFFECT = frozenset({"pay", "await_and_pay"})  # tasks that write to the table `effects`
WITH_TIMEOUT = frozenset({"timed", "await_only"})
TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
LIVE = frozenset({"blocked", "scheduled", "ready", "running"})
WAITING = frozenset({"scheduled", "ready"})
RUNNING = frozenset({"running"})

# From where to where an event may move a job.
MOVES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "unblocked": (frozenset({"blocked"}), WAITING),
    "promoted": (frozenset({"scheduled"}), frozenset({"ready"})),
    "claimed": (frozenset({"ready"}), RUNNING),
    "succeeded": (RUNNING, frozenset({"succeeded"})),
    "retry_scheduled": (RUNNING, WAITING),
    "snoozed": (RUNNING, WAITING),
    "released": (RUNNING, WAITING),
    "interrupted": (RUNNING, frozenset({"ready"})),
    "returned": (RUNNING, frozenset({"ready"})),
    "recovered": (RUNNING, frozenset({"ready"})),
    "failed": (LIVE, frozenset({"failed"})),
    "cancelled": (LIVE, frozenset({"cancelled"})),
    "completed": (LIVE, frozenset({"succeeded"})),
    "requeued": (frozenset({"failed", "cancelled"}), frozenset({"ready", "scheduled", "blocked"})),
    "run_now": (frozenset({"scheduled"}), frozenset({"ready"})),
    "replaced": (LIVE, LIVE),
    "edited": (LIVE | TERMINAL, LIVE | TERMINAL),
}
BY_THE_OWNER = frozenset({"succeeded", "retry_scheduled", "snoozed", "released", "interrupted", "returned"})
OPERATIONS = frozenset({"requeued", "run_now", "completed", "edited"})


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Entry:
    """A job as the log says it is."""

    id: int
    task: str | None
    queue: str
    status: str
    attempt: int = 0
    owner: str | None = None
    owner_process: Process | None = None
    lease: int = 0
    unblocked: int = 0
    requeued: int = 0
    label: int | None = None


@dataclass
class Knowledge:
    """What really happened, and what was asked for. The actors of the simulation write it down."""

    acknowledged: dict[int, int] = field(default_factory=dict)  # job id: label of the intent
    expected: dict[int, int] = field(default_factory=dict)  # label: how many jobs it may make
    begun: Counter[tuple[int, int]] = field(default_factory=Counter)  # (job, attempt): its handler was called
    returned: set[tuple[int, int]] = field(default_factory=set)  # (job, attempt): its handler has returned a value
    acking: set[tuple[int, int]] = field(default_factory=set)  # (message, attempt): its consumer acknowledges it
    asked: set[tuple[str, int]] = field(default_factory=set)  # (operation, job id)
    purging: set[str] = field(default_factory=set)  # queues
    left: set[int] = field(default_factory=set)  # batches whose block has ended


class Model:
    def __init__(self, machine: Machine, path: Path, knowledge: Knowledge) -> None:
        self._machine, self._known = machine, knowledge
        self._raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._raw.execute("PRAGMA wal_autocheckpoint = 0")
        self.entries: dict[int, Entry] = {}
        self.unlogged: dict[int, tuple[str, int]] = {}  # messages without history: status and attempt
        self.made: Counter[int] = Counter()  # jobs by label
        self._paused: set[str] = set()
        self._cursor = self._folded = 0
        self._deltas: list[tuple[int, tuple[str, str, str], int]] = []  # event id, (queue, task, status), change
        self._counts: Counter[tuple[str, str, str]] = Counter()  # of the events that are folded

    def close(self) -> None:
        self._raw.close()

    def after_commit(self, connection: SimulatedConnection) -> None:
        """Check all that this commit has changed."""
        raw = self._raw
        raw.execute("BEGIN")
        try:
            events = raw.execute(
                "SELECT id, job_id, event, queue, coalesce(task, ''), old_status, new_status, attempt, actor, detail"
                " FROM holdfast_events WHERE id > ? ORDER BY id",
                (self._cursor,),
            ).fetchall()
            rows = {
                row[0]: row
                for row in raw.execute(
                    "SELECT id, status, attempt, max_attempts, worker, lease, history, result, args, task, queue,"
                    " continued FROM holdfast_jobs"
                ).fetchall()
            }
            for event in events:
                self._apply(*event, connection=connection, rows=rows)
            if events:
                self._cursor = events[-1][0]
            self._rows_are_as_logged(rows)
            self._acknowledged_are_there(rows)
            self._effects_are_exactly_once(rows)
            self._occurrences_have_one_job_each()
            self._fold_is_right()
        finally:
            raw.execute("ROLLBACK")

    # --- one event ---

    def _apply(
        self,
        id: int,
        job_id: int | None,
        event: str,
        queue: str,
        task: str,
        old: str | None,
        new: str | None,
        attempt: int | None,
        actor: str | None,
        detail: str | None,
        *,
        connection: SimulatedConnection,
        rows: dict[int, Any],
    ) -> None:
        if old is not None:
            self._deltas.append((id, (queue, task, old), -1))
        if new is not None:
            self._deltas.append((id, (queue, task, new), 1))
        if job_id is None:
            if event in ("paused", "resumed"):  # in the order of the log: a claim may come before, in the same commit
                (self._paused.add if event == "paused" else self._paused.discard)(json.loads(detail or "{}")["queue"])
            elif event == "batch_abandoned":
                self._check_abandonment(json.loads(detail or "{}")["batch"], actor, connection)
            return
        entry = self.entries.get(job_id)
        if event == "enqueued":
            _require(entry is None, f"job {job_id} was enqueued twice")
            self._add(job_id, task or None, queue, new or "", rows)
            return
        _require(entry is not None, f"event {event} of job {job_id}, which does not exist")
        assert entry is not None
        _require(entry.status == old, f"{event} of job {job_id} leaves {old}, and the log had it in {entry.status}")
        if event == "removed":
            self._check_removal(entry)
            del self.entries[job_id]
            return
        source, target = MOVES[event]
        _require(old in source and new in target, f"{event} moved job {job_id} from {old} to {new}")
        if event in OPERATIONS or (event in ("failed", "cancelled") and old in TERMINAL):
            _require((event, job_id) in self._known.asked, f"{event} of job {job_id}, which no operator asked for")
        if event == "claimed":
            self._check_claim(entry, attempt or 0, actor)
        elif attempt != entry.attempt:
            raise Violation(f"{event} of job {job_id} has attempt {attempt}, and it is in attempt {entry.attempt}")
        if event in BY_THE_OWNER or (old == "running" and actor == entry.owner):
            self._check_settlement(entry, event, connection)
        elif old == "running" and event in ("recovered", "failed"):
            self._check_recovery(entry, connection)
        if event == "unblocked":
            self._check_unblocking(entry)
        entry.requeued += event == "requeued"
        entry.status = new or ""
        if old == "running":
            entry.owner = entry.owner_process = None
        if event == "claimed":
            entry.owner, entry.attempt = actor, attempt or 0
            entry.owner_process = self._machine.process_of(actor)
        self._machine.counts[f"event {event}"] += 1

    def _add(self, job_id: int, task: str | None, queue: str, status: str, rows: dict[int, Any]) -> None:
        label = None
        if job_id in rows:
            args = json.loads(rows[job_id][8])
            label = args.get("n", CRON_LABEL)
        self.entries[job_id] = Entry(job_id, task, queue, status, label=label)
        if label is not None:
            self.made[label] += 1
            most = self._known.expected.get(label)
            _require(
                most is not None and self.made[label] <= most,
                f"{self.made[label]} jobs were made by enqueue {label}, which makes {most}",
            )

    def _check_claim(self, entry: Entry, attempt: int, actor: str | None) -> None:
        _require(
            attempt == entry.attempt + 1, f"job {entry.id} was claimed as {attempt} after attempt {entry.attempt}"
        )
        _require(
            entry.queue not in self._paused,
            f"job {entry.id} was claimed by {actor} from {entry.queue}, which is paused",
        )

    def _check_settlement(self, entry: Entry, event: str, connection: SimulatedConnection) -> None:
        """Only the process that holds the job settles it, with what this attempt has returned."""
        _require(
            connection.process is entry.owner_process,
            f"{event} of job {entry.id}, attempt {entry.attempt}, by {connection.process.name}: it is held by "
            f"{entry.owner_process.name if entry.owner_process else entry.owner}",
        )
        key = (entry.id, entry.attempt)
        if event == "succeeded":
            done = self._known.returned if entry.task is not None else self._known.acking
            _require(key in done, f"job {entry.id} succeeded in attempt {entry.attempt}, which has not returned")
        if event == "returned":
            _require(
                key not in self._known.begun, f"job {entry.id} was given back after attempt {entry.attempt} began"
            )

    def _check_recovery(self, entry: Entry, connection: SimulatedConnection) -> None:
        """A job is taken from its owner only if that one is dead, or stopped with its lease at an end."""
        if ("failed", entry.id) in self._known.asked:
            return
        machine, owner = self._machine, entry.owner_process
        self._machine.counts["recoveries"] += 1
        if owner is None or owner.is_dead:
            return
        ended = entry.lease <= machine.boot_now()
        if entry.task is None:
            _require(ended, f"message {entry.id} was taken from its consumer before its visibility ended")
        elif entry.task in WITH_TIMEOUT:  # the lease of a live worker is renewed for it until the job's own timeout
            _require(ended, f"job {entry.id} was taken from {owner.name} before its lease ended")
        else:
            _require(
                ended and owner.was_stopped_since(connection.began),
                f"job {entry.id} was taken from {owner.name}, which is alive",
            )

    def _check_unblocking(self, entry: Entry) -> None:
        entry.unblocked += 1
        _require(entry.unblocked <= 1 + entry.requeued, f"job {entry.id} was released {entry.unblocked} times")
        for chain, outcome in self._raw.execute(
            "SELECT chain_id, outcome FROM holdfast_blockers WHERE job_id = ?", (entry.id,)
        ).fetchall():
            _require(outcome is not None, f"job {entry.id} was released while chain {chain} holds it")

    def _check_abandonment(self, batch: int, actor: str | None, connection: SimulatedConnection) -> None:
        """A process abandons its own batch if the block raises, and that of another only after its death."""
        creator = self._raw.execute("SELECT creator FROM holdfast_batches WHERE id = ?", (batch,)).fetchone()[0]
        owner = self._machine.process_of(creator)
        own = owner is connection.process
        _require(
            own or owner is None or owner.is_dead or batch in self._known.left,
            f"batch {batch} was abandoned by {connection.process.name}, and {creator} is in its block",
        )
        self._machine.counts["abandoned by its own block" if own else "abandoned after a death"] += 1

    def _check_removal(self, entry: Entry) -> None:
        allowed = ("delete", entry.id) in self._known.asked or (
            entry.task is None and entry.queue in self._known.purging
        )
        _require(allowed, f"job {entry.id} was deleted in {entry.status}, which no operator asked for")

    # --- all rows ---

    def _rows_are_as_logged(self, rows: dict[int, Any]) -> None:
        entries = self.entries
        unlogged: dict[int, tuple[str, int]] = {}
        logged = 0
        for id, status, attempt, most, worker, lease, history, result, args, task, _, continued in rows.values():
            if attempt > most:
                raise Violation(f"job {id} is in attempt {attempt} of {most}")
            if not history:
                unlogged[id] = status, attempt
                if id not in self.unlogged:
                    self.made[json.loads(args)["n"]] += 1
                continue
            logged += 1
            entry = entries.get(id)
            if entry is None or entry.status != status or entry.attempt != attempt:
                raise Violation(f"job {id} is {status} in attempt {attempt}, and its events say {entry}")
            entry.lease = lease or 0
            if status == "running":
                _require(worker == entry.owner, f"job {id} is held by {worker}, and {entry.owner} claimed it")
            elif status == "succeeded" and task in WITH_EFFECT and not continued and result is not None:
                found = json.loads(result)
                if isinstance(found, dict) and "attempt" in found:
                    _require(
                        found["attempt"] == attempt,
                        f"job {id} has the result of attempt {found['attempt']}: {attempt}",
                    )
        _require(logged == len(entries), f"{len(entries) - logged} jobs are gone without an event")
        for id, (_, attempt) in self.unlogged.items():
            if id not in unlogged:
                queue = "fast"
                fine = (id, attempt) in self._known.acking or queue in self._known.purging
                _require(fine or ("delete", id) in self._known.asked, f"message {id} is gone, not acknowledged")
        self.unlogged = unlogged

    def _acknowledged_are_there(self, rows: dict[int, Any]) -> None:
        for id in self._known.acknowledged:
            if id not in rows and not self._may_be_gone(id):
                raise Violation(f"job {id} was acknowledged, and is gone")

    def _may_be_gone(self, id: int) -> bool:
        known = self._known
        return ("delete", id) in known.asked or any(one[0] == id for one in known.acking) or bool(known.purging)

    def _effects_are_exactly_once(self, rows: dict[int, Any]) -> None:
        """An effect of ctx.complete() is there once if its job has succeeded, and not at all otherwise."""
        effects = Counter(row[0] for row in self._raw.execute("SELECT job_id FROM effects").fetchall())
        for id, row in rows.items():
            if row[9] in WITH_EFFECT:
                _require(
                    effects[id] == (row[1] == "succeeded"), f"job {id} is {row[1]} and has {effects[id]} effects"
                )
        # A row that a transaction wrote beside its enqueue exists if and only if the job does.
        for (label,) in self._raw.execute("SELECT label FROM orders").fetchall():
            _require(self.made[label] == 1, f"order {label} was committed, and has {self.made[label]} jobs")

    def _occurrences_have_one_job_each(self) -> None:
        fires, jobs = self._raw.execute("SELECT count(*), count(DISTINCT job_id) FROM holdfast_fires").fetchone()
        _require(
            fires == jobs == self.made[CRON_LABEL],
            f"{fires} occurrences of the schedule have {self.made[CRON_LABEL]} jobs",
        )

    def _fold_is_right(self) -> None:
        """The folded counts are those of the events up to the cursor."""
        folded = self._raw.execute("SELECT cursor FROM holdfast_fold").fetchone()[0]
        if folded == self._folded:
            return
        _require(folded > self._folded, f"the fold went back from event {self._folded} to {folded}")
        self._folded = folded
        left = []
        for delta in self._deltas:
            if delta[0] <= folded:
                self._counts[delta[1]] += delta[2]
            else:
                left.append(delta)
        self._deltas = left
        stored = {
            (queue, task, status): n
            for queue, task, status, n in self._raw.execute("SELECT queue, task, status, n FROM holdfast_counts")
        }
        expected = {key: n for key, n in self._counts.items() if n}
        _require(stored == expected, f"folded counts up to event {folded} are {stored}, and should be {expected}")
        self._machine.counts["folds"] += 1

    # --- while it is calm, and at the end ---

    def no_job_is_held_by_the_dead(self, seconds: float, calm_since: int) -> None:
        """A job whose owner has died is recovered in this time, without faults."""
        for entry in self.entries.values():
            owner = entry.owner_process
            if owner is not None and owner.is_dead:
                since = (self._machine.now - max(owner.died_at, calm_since)) / SECOND_NS
                _require(since <= seconds, f"job {entry.id} is held by {owner.name}, dead for {since:.1f} s")

    def at_the_end(self) -> None:
        """Every job has ended, unless it may wait; each batch has called back once; counts are those of a recount."""
        raw = self._raw
        for id, status, task, queue in raw.execute("SELECT id, status, task, queue FROM holdfast_jobs").fetchall():
            if status in TERMINAL:
                continue
            held = raw.execute(
                "SELECT 1 FROM holdfast_blockers WHERE job_id = ? AND outcome IS NULL", (id,)
            ).fetchone()
            _require(status == "blocked" and held, f"job {id} of {task or queue} has not ended: it is {status}")
        for id, on_done, done, job_id in raw.execute(
            "SELECT id, on_done, done_at, done_job_id FROM holdfast_batches"
        ):
            open_members = raw.execute(
                "SELECT count(*) FROM holdfast_jobs WHERE batch_id = ? AND status NOT IN"
                " ('succeeded', 'failed', 'cancelled')",
                (id,),
            ).fetchone()[0]
            if not open_members:
                _require(done is not None, f"batch {id} has no unfinished member, and is not done")
                _require(on_done is None or job_id is not None, f"batch {id} has ended without its callback")
        stored: Counter[tuple[str, str, str]] = Counter(self._counts)
        for _, key, change in self._deltas:
            stored[key] += change
        recount = Counter(
            {
                (queue, task, status): n
                for queue, task, status, n in raw.execute(
                    "SELECT queue, coalesce(task, ''), status, count(*) FROM holdfast_jobs WHERE history"
                    " GROUP BY 1, 2, 3"
                )
            }
        )
        _require(+stored == recount, f"the counts are {+stored}, a recount gives {recount}")
        problems = raw.execute("PRAGMA foreign_key_check").fetchall() + [
            row for row in raw.execute("PRAGMA quick_check") if row != ("ok",)
        ]
        _require(not problems, f"SQLite found {problems}")

    def unfinished(self) -> list[str]:
        rows = self._raw.execute(
            "SELECT id, coalesce(task, queue), status, attempt FROM holdfast_jobs AS job"
            " WHERE status NOT IN ('succeeded', 'failed', 'cancelled') AND NOT (status = 'blocked' AND EXISTS"
            " (SELECT 1 FROM holdfast_blockers WHERE job_id = job.id AND outcome IS NULL))"
        ).fetchall()
        endings = self._raw.execute(
            "SELECT 'ending of', chain_id, 'in batch', batch_id FROM holdfast_endings"
        ).fetchall()
        batches = self._raw.execute(
            "SELECT 'open batch', id FROM holdfast_batches WHERE sealed_at IS NULL"
        ).fetchall()
        return [" ".join(map(str, row)) for row in rows + endings + batches]


def _require(holds: Any, what: str) -> None:
    if not holds:
        raise Violation(what)
