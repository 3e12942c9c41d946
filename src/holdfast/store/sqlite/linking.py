"""What ties jobs together: who waits for which chain, who belongs to which batch, and what comes of an end.

A trigger notes every end that may matter to others in the table `endings`. Whoever has ended a job works that off in
the same transaction, or right after, where the end was a single statement. What is left there, since it was too much
for one transaction or a job was ended by hand, the next worker that looks for something to do works off.
"""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import BatchEnded, BatchNotFound, CircularWait, InvalidInput, JobNotFound
from ...graph import Links
from ...model import Inserted, NewJob
from .criteria import as_json
from .reading import get_record
from .referring import Referring

log = logging.getLogger("holdfast.worker")

ENDINGS = 500
EDGES = 1000
MOST_AT_ONCE = 2000

_read_callback = msgspec.json.Decoder(NewJob).decode


class Linking(Referring):
    # --- making ---

    def _insert_new(self, connection: sqlite3.Connection, job: NewJob) -> Inserted:
        now = self._clock.now()
        if job.links is None:
            job_id = connection.execute(self._sql.insert, self._values(job, now)).lastrowid
            assert job_id is not None
            if job.args_blob is not None:
                self._refer(connection, job_id, job.args_blob)
            return Inserted(job_id, now)
        self._require_open_batch(connection, job.links)
        values = (*self._values(job, now), *link_values(job.links))
        job_id = connection.execute(self._sql.insert_linked, values).lastrowid
        assert job_id is not None
        if job.args_blob is not None:
            self._refer(connection, job_id, job.args_blob)
        self._link(connection, [job_id], job.links)
        return Inserted(job_id, now, linked=get_record(connection, self._sql, job_id))

    def _values(self, job: NewJob, now: int) -> tuple[Any, ...]:
        run_at = job.due(now)
        return (
            job.args,
            job.queue,
            job.task,
            job.first_status(now),
            job.priority,
            run_at,
            now,
            job.max_attempts,
            job.timeout,
            job.key,
            job.tags,
            job.history,
            job.trace,
            job.actor or self._actor,
        )

    def _require_open_batch(self, connection: sqlite3.Connection, links: Links) -> None:
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

    def _link(
        self, connection: sqlite3.Connection, ids: Sequence[int], links: Links, chain: int | None = None
    ) -> None:
        """These jobs, which are stored as blocked, wait. chain: the one that they belong to, if that is not new."""
        if not links.after:
            return
        chains = self._chains_of(connection, links.after)
        values = {"jobs": as_json(ids), "chains": as_json(chains), "chain": chain}
        if chain is not None and connection.execute(self._sql.waits_for_itself, values).fetchone() is not None:
            raise CircularWait(f"chain {chain} would wait for itself: what it is to wait for waits for it")
        connection.execute(self._sql.add_blockers, values)
        connection.execute(self._sql.mark_awaited, values)
        connection.execute(self._sql.note_ended, values)
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

    def _note_deletion(
        self,
        connection: sqlite3.Connection,
        event: str,
        count: int,
        ids: Sequence[int],
        actor: str,
        reason: str | None = None,
    ) -> None:
        detail = as_json({"count": count, "among": [ids[0], ids[-1]]} | ({"reason": reason} if reason else {}))
        values = {"now": self._clock.now(), "event": event, "actor": actor, "detail": detail}
        connection.execute(self._sql.note, values)

    # --- what comes of an end ---

    def resolve(self) -> int:
        """Whatever has ended, and whatever has run out of time: those who wait for it are told."""
        return self._in_batches(self._resolve_some)

    def _resolve_some(self, connection: sqlite3.Connection) -> int:
        values = {"now": self._clock.now(), "actor": self._actor, "limit": MOST_AT_ONCE}
        late = connection.execute(self._sql.time_out_external, values).rowcount
        return late + self.resolve_here(connection)

    def _has_endings(self, connection: sqlite3.Connection) -> bool:
        return connection.execute(self._sql.any_ending).fetchone() is not None

    def resolve_here(self, connection: sqlite3.Connection) -> int:
        """In a transaction that is open. Each round is one level of the graph. Returns 0 if there was nothing."""
        done = 0
        while done < MOST_AT_ONCE:
            endings = connection.execute(self._sql.endings, (ENDINGS,)).fetchall()
            if not endings:
                break
            edges = self._release(connection, {chain for _, chain, _ in endings if chain is not None})
            done += len(endings) + edges
            if edges < EDGES:  # or there is more of the same
                self._end_batches(connection, {batch for _, _, batch in endings if batch is not None})
                connection.execute(self._sql.forget_endings, (as_json([ending[0] for ending in endings]),))
        return done

    def _release(self, connection: sqlite3.Connection, chains: set[int]) -> int:
        """Those who waited for these chains, or some of them. Returns how many."""
        if not chains:
            return 0
        values: dict[str, Any] = {"chains": as_json(sorted(chains)), "limit": EDGES}
        edges = connection.execute(self._sql.edges_of_ended, values).fetchall()
        if edges:
            values |= {"edges": as_json(edges), "jobs": as_json(sorted({edge[0] for edge in edges}))}
            values |= {"now": self._clock.now(), "actor": self._actor}
            for statement in ("mark_edges", "fail_blocked", "cancel_blocked", "unblock"):
                connection.execute(getattr(self._sql, statement), values)
        return len(edges)

    def _end_batches(self, connection: sqlite3.Connection, batches: set[int]) -> None:
        if not batches:
            return
        values = {"batches": as_json(sorted(batches))}
        for row in connection.execute(self._sql.batches_that_ended, values).fetchall():
            batch, on_success, on_done, done_at, success_job, all_well = row
            done = {
                "batch": batch,
                "now": self._clock.now(),
                "done_job": None if done_at is not None else self._call_back(connection, batch, on_done),
                "success_job": self._call_back(connection, batch, on_success)
                if all_well and success_job is None
                else None,
            }
            connection.execute(self._sql.batch_done, done)

    def _call_back(self, connection: sqlite3.Connection, batch: int, callback: str | None) -> int | None:
        """A callback that cannot be enqueued, since somebody changed it by hand, must not hold up anything else."""
        if callback is None:
            return None
        connection.execute("SAVEPOINT calling_back")
        job_id = None
        try:
            job_id = self._insert_new(connection, self._apart_if_possible(_read_callback(callback))).id
        except (msgspec.DecodeError, sqlite3.IntegrityError) as error:
            connection.execute("ROLLBACK TO calling_back")
            log.error("batch %d has ended, and its callback cannot be enqueued: %s", batch, error)
        connection.execute("RELEASE calling_back")
        return job_id


def link_values(links: Links) -> tuple[Any, ...]:
    policy = None if links.on_blocker_failure == "hold" else links.on_blocker_failure
    return policy, links.batch_id, links.external, links.timeout_at
