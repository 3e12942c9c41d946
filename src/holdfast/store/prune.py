"""Pruning: find what may go, and delete it in short transactions.

One process prunes at a time. The table `upkeep` has the token of its run. Each transaction of the run stores what the
run has deleted so far, if the token is still there; so a run that was replaced deletes nothing. What may go is found
by reads, and checked again in the transaction that deletes it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from ..clock import Clock
from ..errors import StoreError
from ..model.pruning import (
    LONG_HISTORY,
    Doomed,
    DoomedChain,
    EndedJob,
    EndOfChain,
    LoneJobs,
    OldRows,
    PartOfHistory,
    Pruned,
    Pruner,
    PruneRun,
    WholeChains,
    rows_of,
)
from ..retention import ENDED, Expiry, Mark
from .prune_reader import Weigh
from .statements import SharedDatabase, Statements, as_json

MOST_EDGES = 20_000
FOLD_JOBS = 2000
"""So many deleted jobs leave an event `removed` each, before these are folded and deleted."""
DELETE_OLD = {
    "minutes": ("prune_minutes", "prune_failure_minutes"),
    "failures": ("prune_failures",),
    "tracebacks": ("prune_tracebacks",),
    "audit": ("prune_audit",),
    "batches": ("prune_batches",),
}
WALKED = ("tracebacks", "batches")
"""Found by walking along all rows of a table: what may go stands between what stays."""


class RunLock(Protocol):
    """Shows other processes that the process of a run is alive."""

    def take(self, token: str) -> dict[str, Any]:
        """Returns the columns of the table `upkeep` by which others find the lock."""
        ...

    def is_held(self, *columns: Any) -> bool: ...

    def release(self, token: str) -> None:
        """Does nothing where the run does not have it."""
        ...


class WorkflowPart(Protocol):
    """What becomes of deleted jobs."""

    def resolve_here(self, connection: Any) -> int:
        """Tell batches and waiting jobs, in the transaction that has deleted what they depend on."""
        ...

    def forget_events(self) -> None:
        """Fold the events of deleted jobs, and delete them."""
        ...


class BlobPart(Protocol):
    def read_blob(self, name: str) -> bytes:
        """Read a large payload. Raises BlobMissing."""
        ...

    def collect_blobs(self, limit: int) -> int:
        """Delete what no job refers to, at most so many, a little at a time. Returns how many."""
        ...


class _Run(NamedTuple):
    """The row of the table `upkeep`."""

    token: str | None
    actor: str | None
    kind: str | None
    pid: int | None
    begun_at: int | None
    counts: str | None
    note: str | None
    last_at: int | None
    last_counts: str | None
    lock: tuple[Any, ...]


class Prune:
    def __init__(
        self,
        db: SharedDatabase,
        sql: Statements,
        clock: Clock,
        lock: RunLock,
        workflows: WorkflowPart,
        blobs: BlobPart,
    ) -> None:
        self._db, self._sql, self._clock = db, sql, clock
        self._lock, self._workflows, self._blobs = lock, workflows, blobs
        self._unfolded = 0  # deleted jobs whose events are left
        reading = Weigh(db, sql, blobs.read_blob)
        self.export, self.weigh, self.weigh_rest = reading.export, reading.weigh, reading.weigh_rest

    # --- a run ---

    def begin(self, kind: Pruner, actor: str, note: dict[str, Any]) -> str | None:
        token = secrets.token_hex(8)
        lock = self._lock.take(token)

        def work(connection: Any) -> bool:
            run = self._current(connection)
            if run is not None and run.token is not None:
                if (kind == "worker" or run.kind == "operator") and self._lock.is_held(*run.lock):
                    return False
                self._note_run(connection, run, interrupted=True)
            values = {"token": token, "actor": actor, "kind": kind, "pid": os.getpid(), "now": self._clock.now()}
            connection.execute(self._sql.take_upkeep, values | lock | {"note": as_json(note)})
            return True

        taken = False
        try:
            taken = self._db.run(work)
        finally:
            if not taken:
                self._lock.release(token)
        return token if taken else None

    def end(self, token: str, interrupted: bool) -> None:
        def work(connection: Any) -> bool:
            run = self._current(connection)
            if run is None or run.token != token:
                return False  # another run has taken over, and has written the event
            self._note_run(connection, run, interrupted)
            deleted = bool(_counts(run.counts))
            connection.execute(self._sql.end_upkeep, {"token": token, "now": self._clock.now(), "deleted": deleted})
            return deleted

        try:
            deleted = self._db.run(work, durable=True)
        finally:
            self._lock.release(token)
        if deleted:
            self._fold_deleted()

    def state(self) -> PruneRun:
        def work(connection: Any) -> tuple[_Run | None, Any]:
            return self._current(connection), connection.execute(self._sql.get_meta, ("retention",)).fetchone()

        run, row = self._db.read(work)
        retention = None if row is None else str(row[0])
        if run is None:
            return PruneRun(retention=retention)
        last_at, last_counts = run.last_at, _counts(run.last_counts)
        if run.token is None or not self._lock.is_held(*run.lock):
            return PruneRun(last_at=last_at, last_counts=last_counts, retention=retention)
        return PruneRun(
            run.pid, run.actor, run.kind, run.begun_at, _counts(run.counts), last_at, last_counts, retention
        )

    def _current(self, connection: Any) -> _Run | None:
        row = connection.execute(self._sql.upkeep).fetchone()
        return None if row is None else _Run(*(*row[:9], row[9:]))

    def _note_run(self, connection: Any, run: _Run, interrupted: bool) -> None:
        found = _counts(run.counts)
        if not found and run.kind == "worker":
            return
        detail = found | msgspec.json.decode(run.note or "{}") | ({"interrupted": True} if interrupted else {})
        values = {"now": self._clock.now(), "event": "pruned", "actor": run.actor, "detail": as_json(detail)}
        connection.execute(self._sql.log_event, values)

    def _do(self, token: str, counts: dict[str, int], do: Callable[[Any], Pruned]) -> Pruned | None:
        """Run it in one transaction with the sum of what the run has deleted."""

        def work(connection: Any) -> Pruned:
            begun = perf_counter()
            done = do(connection)
            names = {*counts, *done.counts}
            sums = {name: n for name in names if (n := counts.get(name, 0) + done.counts.get(name, 0))}
            if connection.execute(self._sql.count_upkeep, {"token": token, "counts": as_json(sums)}).rowcount == 0:
                raise _TakenOver
            return replace(done, seconds=perf_counter() - begun)

        try:
            return self._db.run(work)
        except _TakenOver:
            return None

    # --- finding ---

    def ended_after(self, status: str, after: Mark, until: Mark, limit: int) -> list[EndedJob]:
        values = {"status": status, "limit": limit}
        values |= {"after": after[0], "after_id": after[1], "until": until[0], "until_id": until[1]}
        return [EndedJob(*row) for row in self._rows(self._sql.ended_after, values)]

    def doomed_chains(self, chains: Collection[int], expiry: Expiry, gone: Collection[int] = ()) -> list[DoomedChain]:
        return self._db.read(lambda connection: self._judge(connection, chains, expiry, gone))

    def _judge(
        self, connection: Any, chains: Collection[int], expiry: Expiry, gone: Collection[int] = ()
    ) -> list[DoomedChain]:
        """Return those of these chains whose jobs have all expired, counted from the end of the chain; and for which
        no job waited that stays. gone: jobs that are to be taken for deleted."""
        found: dict[int, list[Any]] = {}
        for chain, *member in connection.execute(
            self._sql.members_of_chains, {"chains": as_json(sorted({*chains}))}
        ).fetchall():
            found.setdefault(chain, []).append(member)
        batches = self._ends_of_batches(connection, {member[5] for members in found.values() for member in members})
        doomed = {chain: one for chain, members in found.items() if (one := _whole(chain, members, expiry, batches))}
        self._spare_awaited(connection, doomed, gone)
        return list(doomed.values())

    def _ends_of_batches(self, connection: Any, batches: set[int | None]) -> dict[int, int | None]:
        """None: it goes on, or its callback may still ask how its members ended."""
        ids = sorted(batch for batch in batches if batch is not None)
        if not ids:
            return {}
        return dict(connection.execute(self._sql.ends_of_batches, {"batches": as_json(ids)}).fetchall())

    def _spare_awaited(self, connection: Any, doomed: dict[int, DoomedChain], gone: Collection[int]) -> None:
        """Take out those for which a job waited that stays: it may need the result when an operator retries it."""
        order = sorted(doomed)
        values = {"chains": as_json(order), "limit": MOST_EDGES}
        edges = connection.execute(self._sql.waiters_of_chains, values).fetchall()
        if len(edges) == MOST_EDGES:  # there may be more of the last chain, and of those behind it: the next run sees
            for chain in order[order.index(edges[-1][0]) :]:
                del doomed[chain]
        waiters: dict[int, list[int]] = {}
        awaits: dict[int, set[int]] = {}
        for chain, waiting, its_chain in edges:
            if waiting not in gone:
                waiters.setdefault(its_chain, []).append(chain)
                awaits.setdefault(chain, set()).add(its_chain)
        spared = [chain for chain in doomed if not awaits.get(chain, set()) <= doomed.keys()]
        while spared:
            chain = spared.pop()
            if doomed.pop(chain, None) is not None:
                spared += waiters.get(chain, [])

    # --- deleting jobs: succeeded, failed, cancelled -> gone ---

    def delete(self, token: str, doomed: Doomed, counts: dict[str, int]) -> Pruned | None:
        if isinstance(doomed, PartOfHistory):
            self._workflows.forget_events()  # only events that are folded may go

        def work(connection: Any) -> Pruned:
            match doomed:
                case LoneJobs():
                    return self._delete_alone(connection, doomed)
                case WholeChains():
                    return self._delete_whole(connection, doomed)
                case EndOfChain():
                    return self._delete_end(connection, doomed)
                case PartOfHistory():
                    return self._delete_history(connection, doomed)

        done = self._do(token, counts, work)
        if done is None:
            return None
        self._unfolded += sum(done.counts.get(status, 0) for status in ENDED)
        if self._unfolded >= FOLD_JOBS:
            self._fold_deleted()
        return done

    def _fold_deleted(self) -> None:
        """Fold and delete the events of deleted jobs, in short transactions."""
        with suppress(StoreError):  # what was asked for is done; there will be another time
            self._workflows.forget_events()
            self._unfolded = 0

    def _delete_alone(self, connection: Any, doomed: LoneJobs) -> Pruned:
        ids, status, jobs = [job.id for job in doomed.jobs], doomed.status, doomed.jobs
        values = {"batch": as_json(ids), "status": status, "until": max(job.finished_at for job in jobs)}
        freed = self._waited_for(connection, ids)
        deleted = connection.execute(self._sql.prune_alone, values).rowcount
        counts = {status: deleted, "batches": self._delete_batches(connection, ids, ())}
        return Pruned(counts, tuple(sorted(freed)), sum(job.rows for job in jobs))

    def _delete_whole(self, connection: Any, doomed: WholeChains) -> Pruned:
        known = {one.chain: one.jobs for one in doomed.chains}
        found = self._judge(connection, known, doomed.expiry)
        return self._delete_chains(connection, [one for one in found if one.jobs == known[one.chain]])

    def _delete_end(self, connection: Any, doomed: EndOfChain) -> Pruned:
        """Once the end of the chain is gone, nothing of it can come back."""
        one = doomed.chain
        limit = max(1, doomed.limit * len(one.jobs) // one.rows)
        values = {"chain": one.chain, "limit": limit, "until": one.ended_at}
        if connection.execute(self._sql.chain_may_go, values).fetchone() is None:
            return Pruned({})
        jobs = dict(connection.execute(self._sql.end_of_chain, values).fetchall())
        return self._delete_chains(connection, [replace(one, jobs=jobs, rows=len(jobs) * rows_of(1))])

    def _delete_chains(self, connection: Any, doomed: list[DoomedChain]) -> Pruned:
        jobs = {job: status for one in doomed for job, status in one.jobs.items()}
        if not jobs:
            return Pruned({})
        values = {"batch": as_json(sorted(jobs))}
        freed = self._waited_for(connection, jobs) - {one.chain for one in doomed}
        batches = [row[0] for row in connection.execute(self._sql.batches_of_jobs, values).fetchall()]
        connection.execute(self._sql.delete_jobs, values)
        counts = {status: sum(one == status for one in jobs.values()) for status in ENDED}
        counts["batches"] = self._delete_batches(connection, jobs, batches)
        self._workflows.resolve_here(connection)  # triggers have noted that members and blockers are gone
        return Pruned(counts, tuple(sorted(freed)), sum(one.rows for one in doomed))

    def _waited_for(self, connection: Any, ids: Collection[int]) -> set[int]:
        rows = connection.execute(self._sql.edges_of_jobs, {"batch": as_json(sorted(ids))}).fetchall()
        return {chain for _, chain in rows}

    def _delete_batches(self, connection: Any, callbacks: Collection[int], batches: Collection[int]) -> int:
        """Delete those that have lost their last member or callback."""
        rows = connection.execute(self._sql.batches_of_callbacks, {"batch": as_json(sorted(callbacks))}).fetchall()
        found = {row[0] for row in rows}.union(batches)
        if not found:
            return 0
        deleted: int = connection.execute(self._sql.prune_batches, {"rows": as_json(sorted(found))}).rowcount
        return deleted

    def _delete_history(self, connection: Any, doomed: PartOfHistory) -> Pruned:
        values = {"job": doomed.job, "status": doomed.status, "until": doomed.ended_at, "limit": doomed.limit}
        both = (self._sql.trim_events, self._sql.trim_attempts)
        return Pruned({}, rows=sum(connection.execute(statement, values).rowcount for statement in both))

    # --- deleting what belongs to no job ---

    def delete_old(self, token: str | None, rows: OldRows, counts: dict[str, int]) -> Pruned | None:
        """token: None deletes only blobs; of other rows the result tells, by `rest`, whether there are some."""
        if rows.what == "blobs":
            return self._collect_blobs(token, rows, counts)
        values = rows.bounds
        found = self._rows(getattr(self._sql, f"old_{rows.what}"), values)
        walked = replace(rows, after=found[-1][0]) if rows.what in WALKED and len(found) == rows.limit else None
        keys = sorted({key for key, may_go in found if may_go})
        if not keys:
            return Pruned({}, rest=walked)
        if token is None:
            return Pruned({}, rest=rows)

        def work(connection: Any) -> Pruned:
            given = values | {"rows": as_json(keys)}
            statements = (getattr(self._sql, name) for name in DELETE_OLD[rows.what])
            deleted = sum(connection.execute(statement, given).rowcount for statement in statements)
            rest = walked if rows.what in WALKED else rows if deleted else None
            return Pruned({rows.what: deleted}, rows=deleted, rest=rest)

        return self._do(token, counts, work)

    def _collect_blobs(self, token: str | None, rows: OldRows, counts: dict[str, int]) -> Pruned | None:
        begun = perf_counter()
        deleted = self._blobs.collect_blobs(rows.limit)
        if not deleted:
            return Pruned({})
        done = Pruned({"blobs": deleted}, rows=deleted, seconds=perf_counter() - begun, rest=rows)
        if token is not None and self._do(token, counts, lambda _: done) is None:
            return None
        return done

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = self._db.read(lambda connection: connection.execute(statement, values).fetchall())
        return rows


class _TakenOver(Exception):
    """The run has lost its token: its transaction is rolled back."""


def _whole(chain: int, members: list[Any], expiry: Expiry, batches: dict[int, int | None]) -> DoomedChain | None:
    """None, unless all have ended, and each has expired, counted from the end of the chain or its batch."""
    if any(status not in ENDED or finished_at is None for _, status, _, _, finished_at, _, _ in members):
        return None
    end = max((finished_at, job) for job, _, _, _, finished_at, _, _ in members)
    for batch in {member[5] for member in members} & batches.keys():
        done_at = batches[batch]
        if done_at is None:
            return None
        end = max(end, (done_at, 0))
    if any(end > expiry.until(status, queue, task) for _, status, queue, task, *_ in members):
        return None
    rows = sum(rows_of(attempt) for *_, attempt in members)
    long = tuple(job for job, *_, attempt in members if attempt > LONG_HISTORY)
    return DoomedChain(chain, {job: status for job, status, *_ in members}, rows, end[0], long)


def _counts(text: str | None) -> dict[str, int]:
    return msgspec.json.decode(text, type=dict[str, int]) if text else {}
