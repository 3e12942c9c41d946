"""Out of running. Every statement is fenced by the attempt: False means that the lease was lost."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ...errors import HoldfastError
from ...failure import Failure, shorten
from ...model.job import Lease, NewJob, Settlement, Transition
from ..statements import Statements, as_json
from .blobs import Blobs
from .database import Database
from .job_columns import statement, values
from .workflow import Workflows

NO_FAILURE = Failure("")

# The statements of each; where there are two, the second is for an attempt that was the last.
TRANSITIONS: dict[Transition, list[str]] = {
    "retry": ["retry", "fail"],
    "fail": ["fail"],
    "stop": ["stop"],
    "snooze": ["snooze"],
    "interrupt": ["interrupt"],
    "give_back": ["give_back"],
    "release": ["release", "fail"],
}


class Settle:
    def __init__(self, db: Database, blobs: Blobs, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        self._insert_continuation = statement(db.sql.insert_continuation)

    def settle(self, one: Settlement, conn: Any = None) -> bool:
        """Settle one attempt, in the caller's transaction if there is one. False: the lease was lost."""
        if conn is not None:
            return self._db.take_part(conn, lambda connection: self._settle_with_others(connection, one))
        if one.transition == "succeed" and one.result is None and one.lease.queue is not None:
            return self._db.run(_Ack(self._sql, one), atomic=True)
        one = self._blobs.offload(one)

        def work(connection: sqlite3.Connection) -> bool:
            settled = self.settle_here(connection, one) is not None
            if one.lease.queue is None:  # no job waits for a message
                self._workflows.resolve_here(connection)
            return settled

        return self._db.run(work, wakes=True)

    def _settle_with_others(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        """A continuation that cannot be inserted is the caller's error."""
        if one.then is not None:
            settled = not self.continue_all(connection, [one])
        else:
            settled = self.settle_here(connection, one) is not None
        self._workflows.resolve_here(connection)
        return settled

    def settle_here(self, connection: sqlite3.Connection, one: Settlement) -> Settlement | None:
        """In a transaction that is open: the transition that a worker's attempt has come to. Returns as what it was
        settled, which may be worse than was asked for; None if the lease was lost."""
        one = self._blobs.unless_collected(connection, one)
        if one.then is not None:
            return self._continue_here(connection, one, one.then)
        if one.transition == "succeed":
            return one if self._succeed_here(connection, one) else None
        statements = [getattr(self._sql, name) for name in TRANSITIONS[one.transition]]
        failure = one.failure or NO_FAILURE
        if one.transition == "release":
            failure = Failure("INTERNAL:ATTEMPTS_SPENT", f"released in attempt {one.lease.attempt}, the last")
        # It ended when it ended, but comes back by the clock as it is now: that may have been set since.
        given = _bound(one.lease, one.finished_at, self._clock.now(), one.delay, failure, one.reason)
        return one if self._try_each(connection, statements, given | {"started_at": one.started_at}) else None

    def _succeed_here(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        lease = one.lease
        kept = (one.finished_at, one.result, lease.id, lease.attempt, lease.queue, one.started_at)
        if connection.execute(self._sql.succeed, kept).rowcount == 1:
            if one.result_blob is not None:
                connection.execute(self._sql.set_result_blob, (one.result_blob, lease.id))
            return True
        if one.result_blob is not None:
            connection.execute(self._sql.mark_unused, (one.result_blob,))
        return connection.execute(self._sql.forget, (lease.id, lease.attempt, lease.queue)).rowcount == 1

    def _continue_here(self, connection: sqlite3.Connection, one: Settlement, then: NewJob) -> Settlement | None:
        """Where the chain cannot go on with it, the attempt has failed."""
        connection.execute("SAVEPOINT going_on")
        try:
            settled = None if self.continue_all(connection, [one]) else one
        except HoldfastError as error:
            connection.execute("ROLLBACK TO going_on")
            failure = Failure("RESULT:BAD_CONTINUATION", shorten(f"Then({then.task}): {error}"))
            settled = self.settle_here(connection, replace(one, transition="fail", failure=failure, then=None))
        connection.execute("RELEASE going_on")
        return settled

    def continue_all(self, connection: sqlite3.Connection, some: Sequence[Settlement]) -> list[Settlement]:
        """They succeed, and their chains go on. Returns those whose lease was lost."""
        ended = as_json([as_row(one) for one in some])
        rows = connection.execute(self._sql.continue_many, (ended,)).fetchall()
        settled = {row[0]: row[1:] for row in rows}
        for one in some:
            if one.lease.id in settled and one.then is not None:
                self._insert_continuation_of(connection, one.then, *settled[one.lease.id])
        return [one for one in some if one.lease.id not in settled]

    def _insert_continuation_of(
        self,
        connection: sqlite3.Connection,
        then: NewJob,
        chain_id: int,
        index: int,
        batch_id: int | None,
        worker: str,
        trace: bytes | None,
    ) -> None:
        if then.trace is None and trace is not None:
            then = replace(then, trace=trace.decode("utf-8", "replace"))
        if then.args_blob is not None:
            self._blobs.require_blob(connection, then.args_blob)
        row = values(then, self._clock.now(), worker, chain_id, index, batch_id)
        made = connection.execute(self._insert_continuation, row)
        if made.rowcount == 1 and then.links is not None:
            assert made.lastrowid is not None
            self._workflows.link(connection, [made.lastrowid], then.links, chain_id)

    def _try_each(self, connection: sqlite3.Connection, statements: list[str], values: dict[str, Any]) -> bool:
        """The first of the statements that changes the row is the transition; none: the lease was lost."""
        changed = any(connection.execute(statement, values).rowcount == 1 for statement in statements)
        if changed and values["fingerprint"] is not None:
            connection.execute(self._sql.remember_traceback, values)
        return changed


class _Ack:
    """The success of a message: a single statement, which is a transaction by itself."""

    __slots__ = ("_one", "_sql")

    def __init__(self, sql: Statements, one: Settlement) -> None:
        self._sql, self._one = sql, one

    def __call__(self, connection: sqlite3.Connection) -> bool:
        # Only one of the two changes anything, so together they are as atomic as either.
        if self._one.lease.history:
            return self._keep(connection) or self._forget(connection)
        return self._forget(connection) or self._keep(connection)

    def _keep(self, connection: sqlite3.Connection) -> bool:
        one, lease = self._one, self._one.lease
        given = (one.finished_at, None, lease.id, lease.attempt, lease.queue, one.started_at)
        return connection.execute(self._sql.succeed, given).rowcount == 1

    def _forget(self, connection: sqlite3.Connection) -> bool:
        lease = self._one.lease
        return connection.execute(self._sql.forget, (lease.id, lease.attempt, lease.queue)).rowcount == 1


def as_row(one: Settlement) -> tuple[int, int, str | None, int | None, int]:
    return one.lease.id, one.lease.attempt, one.result, one.started_at, one.finished_at


def _bound(lease: Lease, now: int, clock: int, delay: int, failure: Failure, reason: str) -> dict[str, Any]:
    return {
        "id": lease.id,
        "attempt": lease.attempt,
        "queue": lease.queue,
        "now": now,
        "clock": clock,
        "run_at": clock + delay,
        "started_at": None,
        "error_code": failure.code,
        "error_detail": failure.detail or None,
        "fingerprint": failure.fingerprint,
        "traceback": failure.traceback,
        "reason": reason or None,
    }
