"""Pruning in the database: find what has expired, and delete it in short transactions.

One process prunes at a time. The table `upkeep` holds the token of the active run. Each transaction of a run also
stores what the run has deleted so far, provided that the table still holds its token: so a run that another one has
replaced deletes nothing. Candidates are found by reads, and checked again in the transaction that deletes them.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..blobs import is_reference
from ..clock import Clock
from ..errors import BlobMissing, StoreError
from ..model.pruning import (
    LONG_HISTORY,
    CollectBlobs,
    DeleteChains,
    DeleteChainTail,
    Deleted,
    DeleteJobs,
    DeleteRows,
    Dependents,
    ExpiredChain,
    FinishedJob,
    Initiator,
    JobFootprint,
    PruneState,
    PruneStep,
    RowScan,
    TrimHistory,
    estimated_rows,
)
from ..retention import FINISHED, Expiry, Position
from .database import SharedDatabase
from .statements import Statements, as_json, decoded, record

T = TypeVar("T")
CHUNK_ROWS = 1000
JOB_BYTES, ATTEMPT_BYTES, EVENT_BYTES = 210, 65, 52  # measured averages, with their share of the indexes


class PruneReader:
    def __init__(self, db: SharedDatabase, sql: Statements, fetch: Callable[[str], bytes]) -> None:
        """fetch: reads a large payload."""
        self._db, self._sql, self._fetch = db, sql, fetch

    def export(self, ids: Collection[int]) -> Iterator[bytes]:
        """Return each job as a line of JSON, with its attempts, events and blockers."""
        values, sql = {"batch": as_json(sorted(ids))}, self._sql
        statements = {"attempts": sql.export_attempts, "events": sql.export_events, "blockers": sql.export_blockers}

        def work(connection: Any) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
            jobs = _as_dicts(connection.execute(sql.export_jobs, values))
            return jobs, {name: _as_dicts(connection.execute(text, values)) for name, text in statements.items()}

        jobs, details = self._db.read(work)
        for event in details["events"]:
            event["detail"] = _as_json_value(event["detail"])
        by_job = {name: _grouped((row.pop("job_id"), row) for row in rows) for name, rows in details.items()}
        for job in jobs:
            for name in ("args", "result", "tags"):
                job[name] = _as_json_value(job[name])
            for name in ("args", "result"):
                blob, inline = job[f"{name}_blob"], job[name]
                if isinstance(inline, msgspec.Raw) and is_reference(bytes(inline), blob):
                    with suppress(BlobMissing):  # missing or damaged: export only its name
                        job[name] = msgspec.Raw(self._fetch(blob))
            yield msgspec.json.encode(job | {name: rows.get(job["id"], []) for name, rows in by_job.items()})

    def footprints(self, ids: Collection[int]) -> list[JobFootprint]:
        """Return what would be deleted with each of these jobs."""
        values = {"batch": as_json(sorted(ids))}

        def work(connection: Any) -> tuple[list[Any], ...]:
            names = (self._sql.footprints, self._sql.callbacks_of_batches, self._sql.blockers_of_jobs)
            return tuple(connection.execute(statement, values).fetchall() for statement in names)

        jobs, callbacks, edges = self._db.read(work)
        batches_of, chains_of = _grouped((job, batch) for batch, job in callbacks), _grouped(edges)
        found = []
        for id, status, queue, task, batch, args, result, attempts, events, size in jobs:
            blobs = tuple(name for name in (args, result) if name is not None)
            size += JOB_BYTES + attempts * ATTEMPT_BYTES + events * EVENT_BYTES
            links = tuple(batches_of.get(id, ())), tuple(chains_of.get(id, ()))
            found.append(JobFootprint(id, status, queue, task, batch, *links, blobs, attempts, events, size))
        return found

    def count_dependents(self, dependents: Dependents) -> dict[str, int]:
        """Count what would be deleted besides jobs."""
        counts = {"batches": self._count_batches(dependents), "blobs": self._count_blobs(dependents.references)}
        for scan in dependents.scans:
            if scan.kind not in counts:
                counts[scan.kind] = self._number(getattr(self._sql, f"count_expired_{scan.kind}"), scan.parameters)
        return counts

    def _count_batches(self, dependents: Dependents) -> int:
        """Count batches that are empty, or would lose their last member and callback."""
        candidates = {*dependents.members, *dependents.callbacks}
        scan = next((scan for scan in dependents.scans if scan.kind == "batches"), None)
        while scan is not None and (found := self._rows(self._sql.expired_batches, scan.parameters)):
            candidates.update(batch for batch, has_expired in found if has_expired)
            scan = replace(scan, after=found[-1][0])
        count = 0
        for chunk in _chunks(sorted(candidates)):
            for batch, members, *jobs in self._rows(self._sql.remaining_of_batches, {"batches": as_json(chunk)}):
                callbacks = {job for job in jobs if job is not None}
                is_empty = members == dependents.members.get(batch, 0)
                count += is_empty and callbacks <= dependents.callbacks.get(batch, set())
        return count

    def _count_blobs(self, references: dict[str, int]) -> int:
        """Count blobs that no job refers to, or would refer to after the deletion."""
        count = self._number(self._sql.count_unused_blobs, {})
        for chunk in _chunks(sorted(references)):
            rows = self._rows(self._sql.blob_references, {"names": as_json(chunk)})
            count += sum(references[name] == n for name, n in rows)
        return count

    def _number(self, statement: str, values: dict[str, Any]) -> int:
        return int(self._rows(statement, values)[0][0])

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = self._db.read(lambda connection: connection.execute(statement, values).fetchall())
        return rows


def _grouped(pairs: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), CHUNK_ROWS):
        yield items[start : start + CHUNK_ROWS]


def _as_dicts(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _as_json_value(text: Any) -> Any:
    """Return JSON as it is. Text that is not JSON was inserted by hand: return it as a string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError):
        return text
    return msgspec.Raw(text.encode() if isinstance(text, str) else text)


MAX_EDGES = 20_000
FOLD_JOBS = 2000
"""Each deleted job leaves an event `removed`. After this many jobs, these events are folded and deleted."""
DELETE_ROWS = {
    "minutes": ("delete_minutes", "delete_failure_minutes", "delete_rollups"),
    "failures": ("delete_failures",),
    "tracebacks": ("delete_tracebacks",),
    "audit": ("delete_audit",),
    "batches": ("delete_batches",),
}
FULL_SCANS = ("tracebacks", "batches")
"""Found by a scan of the whole table: expired rows are anywhere between others."""


class RunLock(Protocol):
    """Shows other processes that the process of a run is alive."""

    def take(self, token: str) -> dict[str, Any]:
        """Return the columns of the table `upkeep` by which other processes find the lock."""
        ...

    def is_held(self, *columns: Any) -> bool: ...

    def release(self, token: str) -> None:
        """Release the lock, if this run holds it."""
        ...


class WorkflowPart(Protocol):
    """Handles the effects of deleted jobs on others."""

    def resolve_here(self, connection: Any) -> int:
        """Update batches and waiting jobs, in the transaction that deleted what they depend on."""
        ...

    def forget_events(self) -> None:
        """Fold and delete the events of deleted jobs."""
        ...


class BlobPart(Protocol):
    def read_blob(self, name: str) -> bytes:
        """Read a large payload. Raises BlobMissing."""
        ...

    def collect_blobs(self, limit: int) -> int:
        """Delete up to this many blobs that no job refers to. Return their number."""
        ...


class _Run(Struct, frozen=True):
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
    """Finds and deletes what has expired. One process prunes at a time: it holds the token of the run."""

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
        self._unfolded = 0  # deleted jobs whose `removed` events are still there
        self._transactions: dict[type, Callable[[Any, Any], Deleted]] = {
            DeleteJobs: self._delete_jobs,
            DeleteChains: self._delete_whole_chains,
            DeleteChainTail: self._delete_chain_tail,
            TrimHistory: self._trim_history,
            DeleteRows: self._delete_rows,
        }
        reader = PruneReader(db, sql, blobs.read_blob)
        self.export, self.footprints = reader.export, reader.footprints
        self.count_dependents = reader.count_dependents

    # --- the run ---

    def begin(self, kind: Initiator, actor: str, note: dict[str, Any]) -> str | None:
        """Return a token for a run; None while another run is active. An operator takes over from a worker."""
        token = secrets.token_hex(8)
        lock = self._lock.take(token)

        def work(connection: Any) -> bool:
            run = self._current(connection)
            if run is not None and run.token is not None:
                if (kind == "worker" or run.kind == "operator") and self._lock.is_held(*run.lock):
                    return False
                self._log_run(connection, run, interrupted=True)
            values = {"token": token, "actor": actor, "kind": kind, "pid": os.getpid(), "now": self._clock.now()}
            connection.execute(self._sql.begin_prune_run, values | lock | {"note": as_json(note)})
            return True

        taken = False
        try:
            taken = self._db.run(work)
        finally:
            if not taken:
                self._lock.release(token)
        return token if taken else None

    def end(self, token: str, interrupted: bool) -> None:
        """End the run. Log it if it deleted something, or if an operator started it."""

        def work(connection: Any) -> bool:
            run = self._current(connection)
            if run is None or run.token != token:
                return False  # another run has taken over, and has logged this one
            self._log_run(connection, run, interrupted)
            deleted = bool(_counts(run.counts))
            values = {"token": token, "now": self._clock.now(), "deleted": deleted}
            connection.execute(self._sql.end_prune_run, values)
            return deleted

        try:
            deleted = self._db.run(work, durable=True)
        finally:
            self._lock.release(token)
        if deleted:
            self._fold_deleted()

    def state(self) -> PruneState:
        """Return the active run, the result of the last one, and the policy of the last worker that had one."""

        def work(connection: Any) -> tuple[_Run | None, Any]:
            return self._current(connection), connection.execute(self._sql.get_meta, ("retention",)).fetchone()

        run, row = self._db.read(work)
        retention = None if row is None else str(row[0])
        if run is None:
            return PruneState(retention=retention)
        last = PruneState(last_at=run.last_at, last_counts=_counts(run.last_counts), retention=retention)
        if run.token is None or not self._lock.is_held(*run.lock):
            return last
        return replace(last, pid=run.pid, actor=run.actor, begun_at=run.begun_at)

    def _current(self, connection: Any) -> _Run | None:
        row = connection.execute(self._sql.get_prune_run).fetchone()
        return None if row is None else record(_Run, (*row[:9], row[9:]))

    def _log_run(self, connection: Any, run: _Run, interrupted: bool) -> None:
        """Add the event `pruned`, unless a worker's run deleted nothing."""
        counts = _counts(run.counts)
        if not counts and run.kind == "worker":
            return
        detail = counts | decoded(run.note, dict[str, Any], {}) | ({"interrupted": True} if interrupted else {})
        values = {"now": self._clock.now(), "event": "pruned", "actor": run.actor, "detail": as_json(detail)}
        connection.execute(self._sql.log_event, values)

    # --- finding candidates ---

    def finished_after(self, status: str, after: Position, until: Position, limit: int) -> list[FinishedJob]:
        """Return jobs of one status between two positions, in the order in which they finished."""
        values = {"status": status, "limit": limit}
        values |= {"after": after[0], "after_id": after[1], "until": until[0], "until_id": until[1]}
        return [record(FinishedJob, row) for row in self._rows(self._sql.finished_after, values)]

    def expired_chains(
        self, chains: Collection[int], expiry: Expiry, hidden: Collection[int] = ()
    ) -> list[ExpiredChain]:
        """Return those of these chains that have expired. hidden: jobs that count as deleted."""
        return self._db.read(lambda connection: self._expired_chains(connection, chains, expiry, hidden))

    def _expired_chains(
        self, connection: Any, chains: Collection[int], expiry: Expiry, hidden: Collection[int] = ()
    ) -> list[ExpiredChain]:
        """Return the chains in which all jobs have expired, and for which no other job waited. See _keep_awaited."""
        members: dict[int, list[Any]] = {}
        values = {"chains": as_json(sorted({*chains}))}
        for chain, *member in connection.execute(self._sql.members_of_chains, values).fetchall():
            members.setdefault(chain, []).append(member)
        batches = sorted({member[5] for jobs in members.values() for member in jobs if member[5] is not None})
        done_at: dict[int, int | None] = {}  # None: the batch is open, or a callback may still read its results
        if batches:
            rows = connection.execute(self._sql.batch_done_times, {"batches": as_json(batches)}).fetchall()
            done_at = dict(rows)
        expired = {chain: one for chain, jobs in members.items() if (one := _expired(chain, jobs, expiry, done_at))}
        self._keep_awaited(connection, expired, hidden)
        return list(expired.values())

    def _keep_awaited(self, connection: Any, expired: dict[int, ExpiredChain], hidden: Collection[int]) -> None:
        """Remove chains for which a job waited that stays: it needs their results if an operator retries it.

        hidden: waiting jobs that count as deleted.
        """
        order = sorted(expired)
        values = {"chains": as_json(order), "limit": MAX_EDGES}
        edges = connection.execute(self._sql.waiters_of_chains, values).fetchall()
        if len(edges) == MAX_EDGES:  # incomplete from the last chain on: leave these to the next run
            for chain in order[order.index(edges[-1][0]) :]:
                del expired[chain]
        blockers: dict[int, list[int]] = {}  # by the chain of the waiting job
        waiters: dict[int, set[int]] = {}
        for chain, job, chain_of_job in edges:
            if job not in hidden:
                blockers.setdefault(chain_of_job, []).append(chain)
                waiters.setdefault(chain, set()).add(chain_of_job)
        kept = [chain for chain in expired if not waiters.get(chain, set()) <= expired.keys()]
        while kept:
            chain = kept.pop()
            if expired.pop(chain, None) is not None:
                kept += blockers.get(chain, [])

    def expired_rows(self, scan: RowScan) -> tuple[tuple[int | str, ...], RowScan | None]:
        """Return the keys of expired rows that belong to no job, and where to continue."""
        found = self._rows(getattr(self._sql, f"expired_{scan.kind}"), scan.parameters)
        keys = tuple(sorted({key for key, has_expired in found if has_expired}))
        if scan.kind in FULL_SCANS:
            return keys, replace(scan, after=found[-1][0]) if len(found) == scan.limit else None
        return keys, scan if keys else None

    # --- deleting ---

    def delete(self, token: str | None, step: PruneStep, counts: dict[str, int]) -> Deleted | None:
        """Delete what is still as it was found. None: another run has taken over, and nothing was deleted.

        token: only CollectBlobs needs none. counts: what the run has deleted before.
        """
        if isinstance(step, CollectBlobs):
            return self._collect_blobs(token, step, counts)
        if isinstance(step, TrimHistory):
            self._workflows.forget_events()  # only folded events may be deleted
        run = self._transactions[type(step)]
        done = self._commit(token, counts, lambda connection: run(connection, step))
        if done is not None:
            self._unfolded += sum(done.counts.get(status, 0) for status in FINISHED)
            if self._unfolded >= FOLD_JOBS:
                self._fold_deleted()
        return done

    def _collect_blobs(self, token: str | None, step: CollectBlobs, counts: dict[str, int]) -> Deleted | None:
        started = perf_counter()
        deleted = self._blobs.collect_blobs(step.limit)
        done = Deleted({"blobs": deleted}, rows=deleted, seconds=perf_counter() - started)
        if deleted and token is not None and self._commit(token, counts, lambda _: done) is None:
            return None
        return done

    def _commit(self, token: str | None, counts: dict[str, int], do: Callable[[Any], Deleted]) -> Deleted | None:
        """Run it in one transaction, with the sum of what the run has deleted. None: another run has taken over."""

        def work(connection: Any) -> Deleted:
            started = perf_counter()
            done = do(connection)
            values = {"token": token, "counts": as_json(Counter(counts) + Counter(done.counts))}
            if connection.execute(self._sql.save_prune_counts, values).rowcount == 0:
                raise _TakenOver
            return replace(done, seconds=perf_counter() - started)

        try:
            return self._db.run(work)
        except _TakenOver:
            return None

    def _fold_deleted(self) -> None:
        """Fold and delete the events of deleted jobs, in short transactions."""
        with suppress(StoreError):  # the jobs are deleted; the next run folds the events
            self._workflows.forget_events()
            self._unfolded = 0

    def _delete_jobs(self, connection: Any, step: DeleteJobs) -> Deleted:
        ids, status, jobs = [job.id for job in step.jobs], step.status, step.jobs
        values = {"batch": as_json(ids), "status": status, "until": max(job.finished_at for job in jobs)}
        freed = self._waited_for(connection, ids)
        deleted = connection.execute(self._sql.delete_standalone_jobs, values).rowcount
        counts = {status: deleted, "batches": self._delete_batches(connection, ids, ())}
        return Deleted(counts, tuple(sorted(freed)), sum(job.rows for job in jobs))

    def _delete_whole_chains(self, connection: Any, step: DeleteChains) -> Deleted:
        known = {one.chain: one.jobs for one in step.chains}
        expired = self._expired_chains(connection, known, step.expiry)
        return self._delete_chains(connection, [one for one in expired if one.jobs == known[one.chain]])

    def _delete_chain_tail(self, connection: Any, step: DeleteChainTail) -> Deleted:
        """Once the last job is deleted, the rest of the chain cannot run again."""
        one = step.chain
        limit = max(1, step.limit * len(one.jobs) // one.rows)
        values = {"chain": one.chain, "limit": limit, "until": one.finished_at}
        if connection.execute(self._sql.chain_is_deletable, values).fetchone() is None:
            return Deleted({})
        jobs = dict(connection.execute(self._sql.chain_tail, values).fetchall())
        return self._delete_chains(connection, [replace(one, jobs=jobs, rows=len(jobs) * estimated_rows(1))])

    def _delete_chains(self, connection: Any, chains: list[ExpiredChain]) -> Deleted:
        jobs = {job: status for one in chains for job, status in one.jobs.items()}
        if not jobs:
            return Deleted({})
        values = {"batch": as_json(sorted(jobs))}
        freed = self._waited_for(connection, jobs) - {one.chain for one in chains}
        batches = [row[0] for row in connection.execute(self._sql.batches_of_jobs, values).fetchall()]
        connection.execute(self._sql.delete_jobs, values)
        counts = Counter(jobs.values())
        counts["batches"] = self._delete_batches(connection, jobs, batches)
        self._workflows.resolve_here(connection)  # triggers have marked batches and waiting jobs
        return Deleted(dict(counts), tuple(sorted(freed)), sum(one.rows for one in chains))

    def _waited_for(self, connection: Any, ids: Collection[int]) -> set[int]:
        rows = connection.execute(self._sql.blockers_of_jobs, {"batch": as_json(sorted(ids))}).fetchall()
        return {chain for _, chain in rows}

    def _delete_batches(self, connection: Any, callbacks: Collection[int], batches: Collection[int]) -> int:
        """Delete batches that have lost their last member or callback."""
        rows = connection.execute(self._sql.batches_of_callbacks, {"batch": as_json(sorted(callbacks))}).fetchall()
        found = {row[0] for row in rows}.union(batches)
        if not found:
            return 0
        deleted: int = connection.execute(self._sql.delete_batches, {"rows": as_json(sorted(found))}).rowcount
        return deleted

    def _trim_history(self, connection: Any, trim: TrimHistory) -> Deleted:
        values = {"job": trim.job, "status": trim.status, "until": trim.finished_at, "limit": trim.limit}
        return Deleted({}, rows=connection.execute(self._sql.trim_events, values).rowcount)

    def _delete_rows(self, connection: Any, step: DeleteRows) -> Deleted:
        kind, values = step.scan.kind, step.scan.parameters | {"rows": as_json(step.keys)}
        statements = (getattr(self._sql, name) for name in DELETE_ROWS[kind])
        deleted = sum(connection.execute(statement, values).rowcount for statement in statements)
        return Deleted({kind: deleted}, rows=deleted)

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = self._db.read(lambda connection: connection.execute(statement, values).fetchall())
        return rows


class _TakenOver(Exception):
    """The run has lost its token. The transaction is rolled back."""


def _expired(chain: int, members: list[Any], expiry: Expiry, batches: dict[int, int | None]) -> ExpiredChain | None:
    """Return the chain if all jobs are finished and have expired, counted from the end of the chain or its batch."""
    if any(status not in FINISHED or finished_at is None for _, status, _, _, finished_at, _, _ in members):
        return None
    end = max((finished_at, job) for job, _, _, _, finished_at, _, _ in members)
    for batch in {member[5] for member in members} & batches.keys():
        done_at = batches[batch]
        if done_at is None:
            return None
        end = max(end, (done_at, 0))
    if any(end > expiry.cutoff(status, queue, task) for _, status, queue, task, *_ in members):
        return None
    rows = sum(estimated_rows(attempt) for *_, attempt in members)
    long = tuple(job for job, *_, attempt in members if attempt > LONG_HISTORY)
    return ExpiredChain(chain, {job: status for job, status, *_ in members}, rows, end[0], long)


def _counts(stored: str | None) -> dict[str, int]:
    return decoded(stored, dict[str, int], {})
