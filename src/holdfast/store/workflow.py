"""Create, read and delete chains, blockers and batches, and resolve the ends of jobs.

When a job ends that other jobs or a batch may wait for, a trigger inserts a row into `endings`. The process that
ended the job resolves these rows in the same transaction, or right after it if the end was a single statement. The
next claim resolves the rows that are left, because they were too many for one transaction or plain SQL ended the job.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ..errors import BatchEnded, BatchNotFound, CircularWait, InvalidInput, JobNotFound, StoreError
from ..failure import shorten
from ..model.job import STATUSES, Cursor, Inserted, JobRecord, Links, NewJob
from ..model.workflow import BatchRecord, BatchState, Blocker, Blockers, Deletion, WaitingJobs
from .blobs import Blobs
from .database import Connection, SharedDatabase
from .processes import BlockLock, Slot
from .read import get_record, job_columns
from .statements import as_json, insert_statement, new_job_values, record
from .statistics import Statistics

log = logging.getLogger("holdfast.worker")
ENDINGS_PER_ROUND = 500
EDGES_PER_ROUND = 1000
MAX_RESOLVED = 2000  # endings and edges in one transaction
MAX_SCANNED = 10_000  # blockers
LAST_INDEX = 2**63 - 1
MAX_OPEN_BLOCKS = 10_000
MAX_COUNTED = 1000  # members of a batch with the same status, in a list
BATCH_COLUMNS = ", ".join(field for field in BatchRecord.__struct_fields__ if field not in ("counts", "more"))
BATCHES_BY_STATE: dict[BatchState | None, str] = {
    None: "batches_by_id",
    "open": "batches_open",
    "running": "batches_running",
    "done": "batches_done",
    "abandoned": "batches_abandoned",
}
_read_callback = msgspec.json.Decoder(NewJob).decode


class Workflows:
    """Chains, blockers and batches."""

    def __init__(self, db: SharedDatabase, blobs: Blobs, statistics: Statistics) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock
        self._blobs, self._statistics = blobs, statistics
        self._insert, self._insert_keyed = insert_statement(db.sql.insert), insert_statement(db.sql.insert_keyed)
        self._inserted_id = db.dialect.inserted_id
        self._columns = job_columns(db.dialect)
        self.block_lock = BlockLock(db.locks)

    # --- chains ---

    def chain(
        self, chain_id: int, *, last_only: bool = False, near: int | None = None, each_side: int = 0
    ) -> list[JobRecord]:
        """Return the jobs of a chain, in order. near: only those around this index, the first and the last."""
        wanted = {"chain": chain_id, "low": 0, "high": LAST_INDEX}
        if near is not None:
            wanted |= {"low": max(near - each_side, 0), "high": min(near + each_side, LAST_INDEX)}
        return self._records(self._sql.chain_end if last_only else self._sql.chain, wanted)

    def delete_chain(
        self, chain_id: int, cascade: bool, actor: str, reason: str = "", *, dry_run: bool = False
    ) -> Deletion:
        """Delete the whole chain, unless jobs wait for it. All or nothing.

        cascade: delete the chains of those jobs, too.
        dry_run: only return what would be deleted, and which jobs prevent it.
        """

        def work(connection: Connection) -> Deletion:
            planned = self._plan_deletion(connection, chain_id, cascade)
            if planned.waiting or planned.running:
                return msgspec.structs.replace(planned, ids=())
            if planned.ids:
                connection.execute(self._sql.delete_jobs, {"batch": as_json(planned.ids)})
                self.log_deletion(connection, "deleted", len(planned.ids), planned.ids, actor, reason)
                self.resolve_here(connection)
            return planned

        if dry_run:
            return self._db.read_snapshot(lambda connection: self._plan_deletion(connection, chain_id, cascade))
        deletion = self._db.run(work, durable=True, wakes=True)
        if deletion.ids:
            self.forget_events()
        return deletion

    def _plan_deletion(self, connection: Connection, chain_id: int, cascade: bool) -> Deletion:
        """Return what would be deleted, and which jobs prevent it."""
        chains = [chain_id]
        if cascade:
            chains = [row[0] for row in connection.execute(self._sql.chains_waiting, (chain_id,)).fetchall()]
        in_chain = self._sql.jobs_of_chain
        jobs = [job for one in chains for job in connection.execute(in_chain, {"chain": one}).fetchall()]
        return Deletion(
            ids=tuple(sorted(job_id for job_id, _ in jobs)),
            waiting=() if cascade else tuple(self._waiting_ids(connection, chain_id)),
            running=tuple(job_id for job_id, status in jobs if status == "running"),
        )

    def log_deletion(
        self,
        connection: Connection,
        event: str,
        count: int,
        ids: Sequence[int],
        actor: str,
        reason: str | None = None,
    ) -> None:
        detail = as_json({"count": count, "among": [ids[0], ids[-1]]} | ({"reason": reason} if reason else {}))
        event_row = {"now": self._clock.now(), "event": event, "actor": actor, "detail": detail}
        connection.execute(self._sql.log_event, event_row)

    def forget_events(self) -> None:
        """Delete the events of deleted jobs, after folding them into the statistics."""
        with suppress(StoreError):  # the jobs are deleted; the next fold deletes the events that are left
            self._statistics.fold_all()
            while self._statistics.delete_removed():
                pass

    # --- blockers ---

    def blockers(self, job_id: int, limit: int = -1, *, urgent_first: bool = False) -> Blockers:
        """Return the chains that a job waits for or waited for, in the order given.

        urgent_first: each chain once, those that need an operator first.
        """

        def work(connection: Connection) -> Blockers:
            total, holding = connection.execute(self._sql.count_blockers, (job_id,)).fetchone()
            if not total:
                return Blockers([], 0, 0)
            wanted = {"job": job_id, "limit": limit, "urgent": urgent_first}
            rows = connection.execute(self._sql.blockers, wanted).fetchall()
            return Blockers([record(Blocker, row) for row in rows], total, holding)

        return self._db.read(work)

    def waiting_for(self, chain_id: int, limit: int, *, include_finished: bool = False) -> WaitingJobs:
        """Return unfinished jobs that wait for this chain, or waited for it. include_finished: finished ones, too.

        With a limit, at most 10,000 blockers are scanned.
        """
        bound = MAX_SCANNED if limit >= 0 else -1
        wanted = {"chain": chain_id, "limit": limit, "include_finished": include_finished, "bound": bound}
        found = self._records(self._sql.waiting_for, wanted)
        if len(found) != limit:
            return WaitingJobs(found, len(found))
        ids = self._db.read(lambda connection: self._waiting_ids(connection, chain_id, include_finished, MAX_SCANNED))
        return WaitingJobs(found, len(ids))

    def _waiting_ids(
        self, connection: Connection, chain_id: int, include_finished: bool = False, bound: int = -1
    ) -> list[int]:
        wanted = {"chain": chain_id, "limit": -1, "include_finished": include_finished, "bound": bound}
        rows = connection.execute(self._sql.waiting_for.replace("{columns}", "id"), wanted).fetchall()
        return [row[0] for row in rows]

    # --- batches ---

    def add_batch(self, on_success: NewJob | None, on_done: NewJob | None, conn: Any = None) -> int:
        self._blobs.require_inline(*(None if one is None else one.args for one in (on_success, on_done)))
        callbacks = {
            "on_success": None if on_success is None else as_json(on_success),
            "on_done": None if on_done is None else as_json(on_done),
        }
        slot = self.block_lock.enter()

        def work(connection: Connection) -> int:
            given = {"creator": self._db.actor, "now": self._clock.now()} | slot.columns
            return self._inserted_id(connection.execute(self._sql.add_batch, callbacks | given))

        try:
            return self._db.run_in(conn, work, sum(len(text) for text in callbacks.values() if text is not None))
        except BaseException:
            self.block_lock.leave()
            raise

    def close_batch(
        self,
        batch_id: int,
        conn: Any = None,
        *,
        abandoned: str | None = None,
        cancel: bool = False,
        actor: str | None = None,
        reason: str = "",
        ends_block: bool = False,
    ) -> bool:
        """Stop accepting members.

        cancel: does nothing if the batch was rolled back with the transaction of `conn`.
        """

        def work(connection: Connection) -> bool:
            given = {"batch": batch_id, "now": self._clock.now(), "actor": actor or self._db.actor}
            statement = self._sql.seal_batch if abandoned is None else self._sql.abandon_batch
            is_changed = connection.execute(statement, given).rowcount == 1
            if is_changed and (abandoned is not None or actor is not None):
                event = "batch_sealed" if abandoned is None else "batch_abandoned"
                why = {"reason": abandoned or reason} if abandoned or reason else {}
                detail = as_json({"batch": batch_id} | why)
                connection.execute(self._sql.log_event, given | {"event": event, "detail": detail})
            if cancel:
                given["reason"] = shorten(f"batch {batch_id} was abandoned: {abandoned}")
                connection.execute(self._sql.drop_callbacks, given)
                connection.execute(self._sql.cancel_members, given)
            connection.execute(self._sql.note_batch, given)
            self.resolve_here(connection)
            return is_changed

        try:
            if cancel and conn is not None and not self._db.is_open(conn):
                return False
            is_changed = self._db.run_in(conn, work)
        finally:
            if ends_block:
                self.block_lock.leave()
        if is_changed and abandoned is not None:
            log.warning("batch %d was abandoned: %s", batch_id, abandoned)
        return is_changed

    def seal_abandoned(self) -> int:
        """Seal the batches whose process died inside their block. Returns how many."""
        sealed = 0
        for number, place, found in self._db.rows(self._sql.open_blocks, {"limit": MAX_OPEN_BLOCKS}):
            if self._db.locks.is_free(record(Slot, (number, place))):
                for batch_id in msgspec.json.decode(found):
                    sealed += self.close_batch(batch_id, abandoned="its process died inside the block that made it")
        return sealed

    def reopen_batches(self, connection: Connection, retried: Sequence[int]) -> None:
        """Let batches with retried members be done again when those have finished."""
        connection.execute(self._sql.reopen_batches, {"retried": as_json(retried)})

    def batches(
        self, state: BatchState | None, limit: int, cursor: Cursor | None = None, *, counted: bool = True
    ) -> list[BatchRecord]:
        newer = cursor is not None and cursor.newer
        span = {"low": cursor.id if newer and cursor else 0, "high": LAST_INDEX if newer or not cursor else cursor.id}
        statement: str = getattr(self._sql, BATCHES_BY_STATE[state]).replace("{columns}", BATCH_COLUMNS)
        statement = statement.replace("{order}", "" if newer else "DESC")

        def work(connection: Connection) -> list[BatchRecord]:
            rows = connection.execute(statement, span | {"limit": limit}).fetchall()
            wanted: dict[str, Any] = {
                "batches": as_json([row[0] for row in rows]),
                "statuses": as_json(sorted(STATUSES)),
            }
            counts: dict[int, dict[str, int]] = {row[0]: {} for row in rows}
            if counted:
                wanted["bound"] = MAX_COUNTED + 1
                for batch, status, count in connection.execute(self._sql.bounded_batch_counts, wanted).fetchall():
                    counts[batch][status] = count
            return [_bounded(record(BatchRecord, (*row, counts[row[0]]))) for row in rows]

        found = self._db.read_snapshot(work)
        return found[::-1] if newer else found

    def batch(
        self, batch_id: int | None = None, *, callback: int | None = None, counted: bool = True
    ) -> BatchRecord | None:
        """Return a batch by its id, or by the job that was enqueued as its callback. counted: with its members."""

        def work(connection: Connection) -> BatchRecord | None:
            statement = self._sql.batch.replace("{columns}", BATCH_COLUMNS)
            row = connection.execute(statement, {"batch": batch_id, "callback": callback}).fetchone()
            if row is None:
                return None
            counts = dict(connection.execute(self._sql.batch_counts, (row[0],)).fetchall()) if counted else {}
            return record(BatchRecord, (*row, counts))

        return self._db.read(work)

    def require_open_batch(self, connection: Connection, links: Links) -> None:
        if links.batch_id is None:
            return
        self._db.graph_locks.hold_batch(connection, links.batch_id)
        row = connection.execute(self._sql.batch_is_open, (links.batch_id,)).fetchone()
        if row is None:
            raise BatchNotFound(f"there is no batch {links.batch_id}: it never existed or was deleted")
        if not row[0]:
            raise BatchEnded(
                f"batch {links.batch_id} has ended: members can be added inside its block, and later only by members "
                "that have not finished"
            )

    # --- new jobs ---

    def insert_new(self, connection: Connection, job: NewJob) -> Inserted:
        inserted = self._insert_by(self._insert, connection, job)
        assert inserted is not None
        return inserted

    def insert_keyed(self, connection: Connection, job: NewJob) -> Inserted | None:
        """As insert_new. None: another job has the key, and nothing was inserted."""
        return self._insert_by(self._insert_keyed, connection, job)

    def _insert_by(self, statement: str, connection: Connection, job: NewJob) -> Inserted | None:
        now, links = self._clock.now(), job.links
        if links is not None:
            self.require_open_batch(connection, links)
        if job.args_blob is not None:
            self._blobs.require_blob(connection, job.args_blob)
        result = connection.execute(statement, new_job_values(job, now, self._db.actor))
        if result.rowcount == 0:
            return None
        job_id = self._inserted_id(result)
        if links is None:
            return Inserted(job_id, now)
        self.link(connection, [job_id], links)
        return Inserted(job_id, now, linked=get_record(connection, self._db, job_id))

    def link(self, connection: Connection, ids: Sequence[int], links: Links, chain: int | None = None) -> None:
        """Add the blockers of these jobs, which are stored as blocked.

        chain: the chain that they continue, if any.
        """
        if not links.after:
            return
        chains = self._chains_of(connection, links.after)
        self._db.graph_locks.hold_chains(connection, chains)
        given = {"jobs": as_json(ids), "chains": as_json(chains), "chain": chain}
        if chain is not None and connection.execute(self._sql.waits_for_itself, given).fetchone() is not None:
            raise CircularWait(f"chain {chain} would wait for itself: a job in after= waits for this chain")
        connection.execute(self._sql.add_blockers, given)
        connection.execute(self._sql.mark_awaited, given)
        connection.execute(self._sql.queue_finished, given)
        self.resolve_here(connection)

    def _chains_of(self, connection: Connection, ids: Sequence[int]) -> list[int]:
        chains: list[int] = []
        for job_id, task, chain in connection.execute(self._sql.chains_to_wait_for, (as_json(ids),)).fetchall():
            if chain is None:
                raise JobNotFound(f"there is no job {job_id} to wait for: it never existed or was deleted")
            if task is None:
                raise InvalidInput(f"after= must name jobs of tasks or external jobs, got message {job_id}")
            chains.append(chain)
        return chains

    # --- resolving ends ---

    def resolve(self, limit: int | None = None) -> int:
        """Resolve the ends of jobs: unblock or end waiting jobs, enqueue the callbacks of batches, fail external
        jobs after their timeout and cancel expired jobs, until `limit` rows were processed. Returns how many."""
        return self._db.in_batches(self._resolve_some, limit)

    def _resolve_some(self, connection: Connection) -> int:
        times = {"now": self._clock.now(), "actor": self._db.actor, "limit": MAX_RESOLVED}
        ended = (self._sql.time_out_external, self._sql.expire)
        return sum(connection.execute(one, times).rowcount for one in ended) + self.resolve_here(connection)

    def has_endings(self, connection: Connection) -> bool:
        return connection.execute(self._sql.any_ending).fetchone() is not None

    def resolve_here(self, connection: Connection) -> int:
        """Resolve the ends of jobs in the open transaction, up to MAX_RESOLVED. Returns how many rows were processed.

        Each round is one level of the graph of blockers.
        """
        done, locked = 0, False
        while done < MAX_RESOLVED:
            endings = connection.execute(self._sql.endings, (ENDINGS_PER_ROUND,)).fetchall()
            if not endings:
                break
            if not locked:
                how = self._db.graph_locks.lock_endings(connection)
                if how == "impossible":
                    break
                locked = True
                if how == "locked":
                    continue  # look again: another transaction may have resolved them, or other ends
            edges = self._release(connection, _numbers(chain for _, chain, _ in endings))
            done += len(endings) + edges
            if edges < EDGES_PER_ROUND:  # otherwise more jobs may wait for the same chains
                busy = self._end_batches(connection, _numbers(batch for _, _, batch in endings))
                resolved = [id for id, _, batch in endings if batch not in busy]
                connection.execute(self._sql.delete_endings, (as_json(resolved),))
                if busy:
                    break
        return done

    def _release(self, connection: Connection, chains: set[int]) -> int:
        """Unblock, fail or cancel jobs that wait for these chains, at most EDGES_PER_ROUND. Returns how many."""
        if not chains:
            return 0
        given: dict[str, Any] = {"chains": as_json(sorted(chains)), "limit": EDGES_PER_ROUND}
        edges = connection.execute(self._sql.edges_of_ended, given).fetchall()
        if edges:
            given |= {"edges": as_json(edges), "jobs": as_json(sorted({edge[0] for edge in edges}))}
            given |= {"now": self._clock.now(), "actor": self._db.actor}
            for name in ("mark_edges", "fail_blocked", "cancel_blocked", "unblock"):
                connection.execute(getattr(self._sql, name), given)
        return len(edges)

    def _end_batches(self, connection: Connection, batches: set[int]) -> set[int]:
        """End those of these batches that are done. Return those that a transaction is adding members to."""
        if not batches:
            return set()
        busy = self._db.graph_locks.lock_batches(connection, batches)
        wanted = {"batches": as_json(sorted(batches - busy))}
        for row in connection.execute(self._sql.ended_batches, wanted).fetchall():
            batch, on_success, on_done, done_job, success_job, all_succeeded = row
            done = {"batch": batch, "now": self._clock.now(), "done_job": None, "success_job": None}
            if done_job is None:  # once, also if members are retried after that
                done["done_job"] = self._enqueue_callback(connection, batch, on_done)
            if all_succeeded and success_job is None:
                done["success_job"] = self._enqueue_callback(connection, batch, on_success)
            connection.execute(self._sql.batch_done, done)
        return busy

    def _enqueue_callback(self, connection: Connection, batch: int, callback: str | None) -> int | None:
        """Enqueue a callback. A callback that plain SQL has damaged is logged and must not block other batches."""
        if callback is None:
            return None
        connection.execute("SAVEPOINT enqueue_callback")
        job_id = None
        try:
            job_id = self.insert_new(connection, self._blobs.offload_args_if_possible(_read_callback(callback))).id
        except Exception as error:
            if not isinstance(error, msgspec.DecodeError) and not self._db.dialect.is_constraint_error(error):
                raise
            connection.execute("ROLLBACK TO enqueue_callback")
            log.error("cannot enqueue the callback of batch %d: %s", batch, error)
        connection.execute("RELEASE enqueue_callback")
        return job_id

    def _records(self, template: str, wanted: dict[str, Any]) -> list[JobRecord]:
        return [record(JobRecord, row) for row in self._db.rows(template.replace("{columns}", self._columns), wanted)]


def _numbers(ids: Iterable[Any]) -> set[int]:
    """Return the ids that are any: in a damaged row they may hold something else."""
    return {id for id in ids if isinstance(id, int)}


def _bounded(found: BatchRecord) -> BatchRecord:
    """Cut the counts at the bound, and say whether there are more."""
    more = any(count > MAX_COUNTED for count in found.counts.values())
    counts = {status: min(count, MAX_COUNTED) for status, count in found.counts.items()}
    return msgspec.structs.replace(found, counts=counts, more=more)
