"""Chains, blockers and batches: reading, making and deleting them, and what happens when a job ends.

A trigger inserts a row into `endings` for every end that other jobs or a batch may wait for. Whoever has ended a job
resolves these rows in the same transaction, or right after it if the end was a single statement. Rows that are left,
because they were too many for one transaction or the job was ended by plain SQL, are resolved by the next worker that
looks for work.
"""

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ...errors import BatchEnded, BatchNotFound, CircularWait, InvalidInput, JobNotFound, StoreError
from ...model.blocker import Blocker, Blockers, WaitingJobs
from ...model.job import Inserted, JobRecord, NewJob
from ...model.workflow import BatchRecord, Deletion, Links
from ..statements import as_json
from ..statistics import Statistics
from .blobs import Blobs
from .database import Database
from .engine.transaction import is_open
from .job_columns import statement, values
from .read import COLUMNS, get_record

log = logging.getLogger("holdfast.worker")
ENDINGS = 500
EDGES = 1000
MOST_AT_ONCE = 2000
MOST_WALKED = 10_000
LAST_INDEX = 2**63 - 1
_read_callback = msgspec.json.Decoder(NewJob).decode


class Workflows:
    def __init__(self, db: Database, blobs: Blobs, statistics: Statistics) -> None:
        self._db, self._sql, self._clock = db, db.sql, db.clock
        self._blobs, self._statistics = blobs, statistics
        self._insert = statement(db.sql.insert)

    # --- chains ---

    def chain(
        self, chain_id: int, *, last_only: bool = False, near: int | None = None, each_side: int = 0
    ) -> list[JobRecord]:
        """Read the jobs of a chain, in order. near: only those around this index, the first and the last."""
        found = {"chain": chain_id, "low": 0, "high": LAST_INDEX}
        if near is not None:
            found |= {"low": near - each_side, "high": near + each_side}
        return self._records(self._sql.chain_end if last_only else self._sql.chain, found)

    def delete_chain(
        self, chain_id: int, cascade: bool, actor: str, reason: str = "", *, dry_run: bool = False
    ) -> Deletion:
        """Delete the whole chain, unless others wait for it; with `cascade` those, too. All or nothing.

        dry_run: tells what would be deleted, and what is in the way.
        """

        def work(connection: sqlite3.Connection) -> Deletion:
            found = self._deletion(connection, chain_id, cascade)
            if found.waiting or found.running:
                return msgspec.structs.replace(found, ids=())
            if found.ids:
                connection.execute(self._sql.delete_jobs, {"batch": as_json(found.ids)})
                self.note_deletion(connection, "deleted", len(found.ids), found.ids, actor, reason)
                self.resolve_here(connection)
            return found

        if dry_run:
            return self._db.read_snapshot(lambda connection: self._deletion(connection, chain_id, cascade))
        deletion = self._db.run(work, durable=True, wakes=True)
        if deletion.ids:
            self.forget_events()
        return deletion

    def _deletion(self, connection: sqlite3.Connection, chain_id: int, cascade: bool) -> Deletion:
        """Find what would be deleted, and what is in the way."""
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

    def note_deletion(
        self,
        connection: sqlite3.Connection,
        event: str,
        count: int,
        ids: Sequence[int],
        actor: str,
        reason: str | None = None,
    ) -> None:
        detail = as_json({"count": count, "among": [ids[0], ids[-1]]} | ({"reason": reason} if reason else {}))
        note = {"now": self._clock.now(), "event": event, "actor": actor, "detail": detail}
        connection.execute(self._sql.note, note)

    def forget_events(self) -> None:
        """Delete the events of deleted jobs, which are kept until they are folded."""
        with suppress(StoreError):  # what was asked for is done; the next one that folds sees to the rest
            self._statistics.fold_all()
            while self._statistics.delete_removed():
                pass

    # --- blockers ---

    def blockers(self, job_id: int, limit: int = -1, *, urgent_first: bool = False) -> Blockers:
        """Read the chains that a job waits for, or waited for: as they were given, or each once, first those that
        need an operator."""

        def work(connection: sqlite3.Connection) -> Blockers:
            total, holding = connection.execute(self._sql.count_blockers, (job_id,)).fetchone()
            if not total:
                return Blockers([], 0, 0)
            wanted = {"job": job_id, "limit": limit, "urgent": urgent_first}
            rows = connection.execute(self._sql.blockers, wanted).fetchall()
            return Blockers([Blocker(*row) for row in rows], total, holding)

        return self._db.read(work)

    def waiting_for(self, chain_id: int, limit: int, *, ended: bool = False) -> WaitingJobs:
        """Read unfinished jobs that wait for this chain, or waited for it. ended: those that have ended, too.

        With a limit, at most 10,000 are looked at.
        """
        wanted = {"chain": chain_id, "limit": limit, "ended": ended, "most": MOST_WALKED if limit >= 0 else -1}
        found = self._records(self._sql.waiting_for, wanted)
        if len(found) != limit:
            return WaitingJobs(found, len(found))
        ids = self._db.read(lambda connection: self._waiting_ids(connection, chain_id, ended, MOST_WALKED))
        return WaitingJobs(found, len(ids))

    def _waiting_ids(
        self, connection: sqlite3.Connection, chain_id: int, ended: bool = False, most: int = -1
    ) -> list[int]:
        wanted = {"chain": chain_id, "limit": -1, "ended": ended, "most": most}
        rows = connection.execute(self._sql.waiting_for.replace("{columns}", "id"), wanted).fetchall()
        return [row[0] for row in rows]

    # --- batches ---

    def add_batch(self, on_success: NewJob | None, on_done: NewJob | None, conn: Any = None) -> int:
        self._blobs.require_inline(*(None if one is None else one.args for one in (on_success, on_done)))
        callbacks = {
            "on_success": None if on_success is None else as_json(on_success),
            "on_done": None if on_done is None else as_json(on_done),
        }

        def work(connection: sqlite3.Connection) -> int:
            batch_id = connection.execute(self._sql.add_batch, callbacks | {"now": self._clock.now()}).lastrowid
            assert batch_id is not None
            return batch_id

        return self._db.run_in(conn, work, sum(len(text) for text in callbacks.values() if text is not None))

    def close_batch(self, batch_id: int, conn: Any = None, *, cancel: str | None = None) -> None:
        """Take no more members from outside. cancel: a reason; its members are cancelled and no callback runs.

        A batch that was rolled back with the transaction of `conn` needs no cancelling.
        """

        def work(connection: sqlite3.Connection) -> None:
            given = {"batch": batch_id, "now": self._clock.now(), "actor": self._db.actor, "reason": cancel}
            connection.execute(self._sql.seal_batch, given)
            if cancel is not None:
                connection.execute(self._sql.drop_callbacks, given)
                connection.execute(self._sql.cancel_members, given)
            connection.execute(self._sql.note_batch, given)
            self.resolve_here(connection)

        if cancel is None or conn is None or is_open(conn):
            self._db.run_in(conn, work)

    def batch(self, batch_id: int | None = None, *, callback: int | None = None) -> BatchRecord | None:
        """Read a batch by its id, or by the job that was enqueued as its callback."""

        def work(connection: sqlite3.Connection) -> BatchRecord | None:
            row = connection.execute(self._sql.batch, {"batch": batch_id, "callback": callback}).fetchone()
            if row is None:
                return None
            counts = dict(connection.execute(self._sql.batch_counts, (row[0],)).fetchall())
            return BatchRecord(*(*row, counts))

        return self._db.read(work)

    def require_open_batch(self, connection: sqlite3.Connection, links: Links) -> None:
        if links.batch_id is None:
            return
        row = connection.execute(self._sql.batch_is_open, (links.batch_id,)).fetchone()
        if row is None:
            raise BatchNotFound(f"there is no batch {links.batch_id}: it never existed, or it was deleted")
        if not row[0]:
            raise BatchEnded(
                f"batch {links.batch_id} has ended: it takes members while its block lasts, and then from members "
                "that have not ended"
            )

    # --- new jobs ---

    def insert_new(self, connection: sqlite3.Connection, job: NewJob) -> Inserted:
        now, links = self._clock.now(), job.links
        if links is not None:
            self.require_open_batch(connection, links)
        if job.args_blob is not None:
            self._blobs.require_blob(connection, job.args_blob)
        job_id = connection.execute(self._insert, values(job, now, self._db.actor)).lastrowid
        assert job_id is not None
        if links is None:
            return Inserted(job_id, now)
        self.link(connection, [job_id], links)
        return Inserted(job_id, now, linked=get_record(connection, self._sql, job_id))

    def link(
        self, connection: sqlite3.Connection, ids: Sequence[int], links: Links, chain: int | None = None
    ) -> None:
        """Add the blockers of these jobs, which are stored as blocked. chain: their chain, unless each begins one."""
        if not links.after:
            return
        chains = self._chains_of(connection, links.after)
        given = {"jobs": as_json(ids), "chains": as_json(chains), "chain": chain}
        if chain is not None and connection.execute(self._sql.waits_for_itself, given).fetchone() is not None:
            raise CircularWait(f"chain {chain} would wait for itself: what it is to wait for waits for it")
        connection.execute(self._sql.add_blockers, given)
        connection.execute(self._sql.mark_awaited, given)
        connection.execute(self._sql.note_ended, given)
        self.resolve_here(connection)

    def _chains_of(self, connection: sqlite3.Connection, ids: Sequence[int]) -> list[int]:
        chains: list[int] = []
        for asked, task, chain in connection.execute(self._sql.chains_to_wait_for, (as_json(ids),)).fetchall():
            if chain is None:
                raise JobNotFound(f"there is no job {asked} to wait for: it never existed, or it was deleted")
            if task is None:
                raise InvalidInput(f"{asked} is a message: after= takes jobs of tasks, or external ones")
            chains.append(chain)
        return chains

    # --- when a job has ended ---

    def resolve(self) -> int:
        """Unblock or end the jobs that waited for what has ended, call back for batches, and fail external jobs whose
        time is over."""
        return self._db.in_batches(self._resolve_some)

    def _resolve_some(self, connection: sqlite3.Connection) -> int:
        times = {"now": self._clock.now(), "actor": self._db.actor, "limit": MOST_AT_ONCE}
        late = connection.execute(self._sql.time_out_external, times).rowcount
        return late + self.resolve_here(connection)

    def has_endings(self, connection: sqlite3.Connection) -> bool:
        return connection.execute(self._sql.any_ending).fetchone() is not None

    def resolve_here(self, connection: sqlite3.Connection) -> int:
        """Do so in an open transaction. Each round is one level of the graph. Returns 0 if there was nothing."""
        done = 0
        while done < MOST_AT_ONCE:
            endings = connection.execute(self._sql.endings, (ENDINGS,)).fetchall()
            if not endings:
                break
            edges = self._release(connection, {chain for _, chain, _ in endings if chain is not None})
            done += len(endings) + edges
            if edges < EDGES:  # otherwise there may be more that wait for the same chains
                self._end_batches(connection, {batch for _, _, batch in endings if batch is not None})
                connection.execute(self._sql.forget_endings, (as_json([ending[0] for ending in endings]),))
        return done

    def _release(self, connection: sqlite3.Connection, chains: set[int]) -> int:
        """Unblock, fail or cancel jobs that waited for these chains, at most EDGES of them. Returns how many."""
        if not chains:
            return 0
        given: dict[str, Any] = {"chains": as_json(sorted(chains)), "limit": EDGES}
        edges = connection.execute(self._sql.edges_of_ended, given).fetchall()
        if edges:
            given |= {"edges": as_json(edges), "jobs": as_json(sorted({edge[0] for edge in edges}))}
            given |= {"now": self._clock.now(), "actor": self._db.actor}
            for name in ("mark_edges", "fail_blocked", "cancel_blocked", "unblock"):
                connection.execute(getattr(self._sql, name), given)
        return len(edges)

    def _end_batches(self, connection: sqlite3.Connection, batches: set[int]) -> None:
        if not batches:
            return
        ended = {"batches": as_json(sorted(batches))}
        for row in connection.execute(self._sql.batches_that_ended, ended).fetchall():
            batch, on_success, on_done, done_at, success_job, all_well = row
            done = {"batch": batch, "now": self._clock.now(), "done_job": None, "success_job": None}
            if done_at is None:
                done["done_job"] = self._call_back(connection, batch, on_done)
            if all_well and success_job is None:
                done["success_job"] = self._call_back(connection, batch, on_success)
            connection.execute(self._sql.batch_done, done)

    def _call_back(self, connection: sqlite3.Connection, batch: int, callback: str | None) -> int | None:
        """Enqueue a callback. One that was damaged by plain SQL is logged and must not stop anything else."""
        if callback is None:
            return None
        connection.execute("SAVEPOINT calling_back")
        job_id = None
        try:
            job_id = self.insert_new(connection, self._blobs.apart_if_possible(_read_callback(callback))).id
        except (msgspec.DecodeError, sqlite3.IntegrityError) as error:
            connection.execute("ROLLBACK TO calling_back")
            log.error("batch %d has ended, and its callback cannot be enqueued: %s", batch, error)
        connection.execute("RELEASE calling_back")
        return job_id

    def _records(self, template: str, wanted: dict[str, Any]) -> list[JobRecord]:
        return [JobRecord(*row) for row in self._db.rows(template.replace("{columns}", COLUMNS), wanted)]
