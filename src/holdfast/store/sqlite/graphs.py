"""Chains and batches as a whole: to look at, to make, to delete."""

import sqlite3
from typing import Any

from ...graph import BatchRecord, BlockerRecord, Deletion
from ...model import JobRecord, NewJob
from .criteria import as_json
from .enqueuing import Enqueuing
from .reading import COLUMNS
from .transaction import is_open


class Graphs(Enqueuing):
    def chain(self, chain_id: int) -> list[JobRecord]:
        statement = self._sql.chain.replace("{columns}", COLUMNS)
        rows = self._read(lambda connection: connection.execute(statement, {"chain": chain_id}).fetchall())
        return [JobRecord(*row) for row in rows]

    def chain_end(self, chain_id: int) -> JobRecord | None:
        statement = self._sql.chain_end.replace("{columns}", COLUMNS)
        row = self._read(lambda connection: connection.execute(statement, {"chain": chain_id}).fetchone())
        return None if row is None else JobRecord(*row)

    def blockers_of(self, job_id: int) -> list[BlockerRecord]:
        rows = self._read(lambda connection: connection.execute(self._sql.blockers_of, (job_id,)).fetchall())
        return [BlockerRecord(*row) for row in rows]

    def waiting_for(self, chain_id: int, limit: int, ended: bool = False) -> list[JobRecord]:
        statement = self._sql.waiting_for.replace("{columns}", COLUMNS)
        values = {"chain": chain_id, "limit": limit, "ended": ended}
        rows = self._read(lambda connection: connection.execute(statement, values).fetchall())
        return [JobRecord(*row) for row in rows]

    def delete_chain(self, chain_id: int, cascade: bool, actor: str, reason: str = "") -> Deletion:
        def work(connection: sqlite3.Connection) -> Deletion:
            values: dict[str, Any] = {"chain": chain_id}
            others = [row[0] for row in connection.execute(self._sql.chains_waiting, values).fetchall()]
            others.remove(chain_id)
            if others and not cascade:
                waiting = connection.execute(
                    self._sql.waiting_for.replace("{columns}", "id"), values | {"limit": -1, "ended": False}
                )
                return Deletion(waiting=tuple(row[0] for row in waiting.fetchall()))
            jobs = [
                row
                for chain in [chain_id, *others]
                for row in connection.execute(self._sql.jobs_of_chain, {"chain": chain}).fetchall()
            ]
            running = tuple(job_id for job_id, status in jobs if status == "running")
            if running:
                return Deletion(running=running)
            ids = sorted(job_id for job_id, _ in jobs)
            deleted = connection.execute(self._sql.delete_jobs, {"batch": as_json(ids)}).rowcount
            if deleted:
                self._note_deletion(connection, "deleted", deleted, ids, actor, reason)
            self.resolve_here(connection)
            return Deletion(deleted=deleted)

        return self._run(work, durable=True, wakes=True)

    # --- batches ---

    def add_batch(self, on_success: NewJob | None, on_done: NewJob | None, conn: Any = None) -> int:
        self._require_inline(*(None if one is None else one.args for one in (on_success, on_done)))
        callbacks = {"on_success": _written(on_success), "on_done": _written(on_done)}

        def work(connection: sqlite3.Connection) -> int:
            batch_id = connection.execute(self._sql.add_batch, callbacks | {"now": self._clock.now()}).lastrowid
            assert batch_id is not None
            return batch_id

        return self._write(work, conn, sum(len(text) for text in callbacks.values() if text is not None))

    def seal_batch(self, batch_id: int, conn: Any = None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            values = {"batch": batch_id, "now": self._clock.now()}
            connection.execute(self._sql.seal_batch, values)
            connection.execute(self._sql.note_batch, values)
            self.resolve_here(connection)

        self._write(work, conn, 0)

    def abandon_batch(self, batch_id: int, reason: str, conn: Any = None) -> None:
        def work(connection: sqlite3.Connection) -> None:
            values = {"batch": batch_id, "now": self._clock.now(), "actor": self._actor, "reason": reason}
            connection.execute(self._sql.abandon_batch, values)
            connection.execute(self._sql.cancel_members, values)
            connection.execute(self._sql.note_batch, values)
            self.resolve_here(connection)

        if conn is None or is_open(conn):
            self._write(work, conn, 0)

    def batch(self, batch_id: int) -> BatchRecord | None:
        def work(connection: sqlite3.Connection) -> BatchRecord | None:
            row = connection.execute(self._sql.batch, (batch_id,)).fetchone()
            if row is None:
                return None
            counts = dict(connection.execute(self._sql.batch_counts, (batch_id,)).fetchall())
            return BatchRecord(**dict(zip(BatchRecord.__struct_fields__, (*row, counts), strict=True)))

        return self._read(work)

    def batch_of_callback(self, job_id: int) -> int | None:
        """The batch that this job was enqueued for, when all of it had ended."""
        values = {"job": job_id}
        row = self._read(lambda connection: connection.execute(self._sql.batch_of_callback, values).fetchone())
        return None if row is None else row[0]


def _written(callback: NewJob | None) -> str | None:
    return None if callback is None else as_json(callback)
