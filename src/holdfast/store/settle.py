"""Settle attempts: the transitions out of running. Every statement is fenced by the attempt number.

A worker settles many at once with `settle_and_claim.py`, which uses this module for all but plain successes.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import HoldfastError
from ..failure import Failure, shorten
from ..model.job import Lease, NewJob, Settlement, Transition
from .database import Connection, SharedDatabase
from .job_columns import statement, values
from .offload import Blobs
from .statements import Statements, as_json
from .workflow import Workflows

NO_FAILURE = Failure("")

# The statements of each transition. If there are two, the second one is for the last attempt, or for a payload that
# was kept for newer code for long enough.
TRANSITIONS: dict[Transition, list[str]] = {
    "retry": ["retry", "fail"],
    "fail": ["fail"],
    "stop": ["stop"],
    "snooze": ["snooze"],
    "interrupt": ["interrupt"],
    "give_back": ["give_back"],
    "release": ["release", "fail"],
    "unfit": ["return_unfit", "fail"],
}


class Settle:
    def __init__(self, db: SharedDatabase, blobs: Blobs, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        self._insert_continuation = statement(db.sql.insert_continuation)

    def settle(self, one: Settlement, conn: Any = None) -> bool:
        """Settle one attempt, in the caller's transaction if conn is given. Return False if the lease was lost."""
        if conn is not None:
            return self._db.run_in_transaction(conn, lambda connection: self._settle_in(connection, one))
        if one.transition == "succeed" and one.result is None and one.lease.queue is not None:
            return self._db.run(_Ack(self._sql, one), atomic=True)
        one = self._blobs.offload(one)

        def work(connection: Connection) -> bool:
            settled = self.settle_here(connection, one) is not None
            if one.lease.queue is None:  # not a message: jobs may wait for it
                self._workflows.resolve_here(connection)
            return settled

        return self._db.run(work, wakes=True)

    def save_state(self, lease: Lease, state: str) -> bool:
        def work(connection: Connection) -> bool:
            return connection.execute(self._sql.save_state, (state, lease.id, lease.attempt)).rowcount == 1

        self._db.require_space(len(state))
        return self._db.run(work, durable=True, atomic=True)

    def _settle_in(self, connection: Connection, one: Settlement) -> bool:
        """Settle in the caller's transaction. A continuation that cannot be inserted raises."""
        if one.then is not None:
            settled = not self.continue_all(connection, [one])
        else:
            settled = self.settle_here(connection, one) is not None
        self._workflows.resolve_here(connection)
        return settled

    def settle_here(self, connection: Connection, one: Settlement) -> Settlement | None:
        """Settle in an open transaction.

        Return the settlement that was applied, which is a failure if the continuation could not be inserted, and a
        retry if a blob that the attempt has stored was deleted. Return None if the lease was lost.
        """
        one = self._blobs.unless_collected(connection, one)
        if one.then is not None:
            return self._continue_here(connection, one, one.then)
        if one.transition == "succeed":
            return one if self._succeed_here(connection, one) else None
        statements = TRANSITIONS[one.transition]
        failure = one.failure or NO_FAILURE
        if one.transition == "release":
            failure = Failure("INTERNAL:ATTEMPTS_SPENT", f"released in attempt {one.lease.attempt}, the last")
        # finished_at is when the attempt ended, but the delay starts now: the clock may have been set since.
        bound = _values(one, self._clock.now(), failure)
        done = self._run_first(connection, statements, bound | {"keep": one.keep})
        if done is None:
            return None
        return replace(one, transition="fail") if one.transition == "unfit" and done == "fail" else one

    def _succeed_here(self, connection: Connection, one: Settlement) -> bool:
        lease = one.lease
        if connection.execute(self._sql.succeed, _success(one)).rowcount == 1:
            if one.result_blob is not None:
                connection.execute(self._sql.set_result_blob, (one.result_blob, lease.id))
            return True
        if one.result_blob is not None:
            connection.execute(self._sql.mark_unused, (one.result_blob,))
        key = (lease.id, lease.attempt, lease.queue)
        return connection.execute(self._sql.succeed_without_history, key).rowcount == 1

    def _continue_here(self, connection: Connection, one: Settlement, then: NewJob) -> Settlement | None:
        """Succeed and insert the continuation. If that is impossible, the attempt fails."""
        connection.execute("SAVEPOINT continuation")
        try:
            settled = None if self.continue_all(connection, [one]) else one
        except HoldfastError as error:
            connection.execute("ROLLBACK TO continuation")
            failure = Failure("RESULT:BAD_CONTINUATION", shorten(f"Then({then.task}): {error}"))
            settled = self.settle_here(connection, replace(one, transition="fail", failure=failure, then=None))
        connection.execute("RELEASE continuation")
        return settled

    def continue_all(self, connection: Connection, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Succeed and insert the continuations. Return the settlements whose lease was lost."""
        finished = as_json([(*as_row(one), one.progress, one.progress_text) for one in settlements])
        rows = connection.execute(self._sql.continue_many, (finished,)).fetchall()
        settled = {row[0]: row[1:] for row in rows}
        for one in settlements:
            if one.lease.id in settled and one.then is not None:
                self._insert_next(connection, one.then, *settled[one.lease.id])
        return [one for one in settlements if one.lease.id not in settled]

    def _insert_next(
        self,
        connection: Connection,
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
        inserted = connection.execute(self._insert_continuation, row)
        if inserted.rowcount == 1 and then.links is not None:
            self._workflows.link(connection, [self._db.dialect.inserted_id(inserted)], then.links, chain_id)

    def _run_first(self, connection: Connection, names: list[str], values: dict[str, Any]) -> str | None:
        """Run statements until one changes the row. Return its name, or None if none does: the lease was lost."""
        done = next((name for name in names if self._changes_row(connection, name, values)), None)
        if done is not None and values["fingerprint"] is not None:
            connection.execute(self._sql.remember_traceback, values)
        return done

    def _changes_row(self, connection: Connection, name: str, values: dict[str, Any]) -> bool:
        return connection.execute(getattr(self._sql, name), values).rowcount == 1


class _Ack:
    """Acknowledges a message without a result: a single statement, which is a transaction by itself."""

    __slots__ = ("_one", "_sql")

    def __init__(self, sql: Statements, one: Settlement) -> None:
        self._sql, self._one = sql, one

    def __call__(self, connection: Connection) -> bool:
        # Only one of the two statements changes a row, so together they are as atomic as either.
        if self._one.lease.history:
            return self._succeed(connection) or self._delete(connection)
        return self._delete(connection) or self._succeed(connection)

    def _succeed(self, connection: Connection) -> bool:
        return connection.execute(self._sql.succeed, _success(self._one)).rowcount == 1

    def _delete(self, connection: Connection) -> bool:
        lease = self._one.lease
        return (
            connection.execute(self._sql.succeed_without_history, (lease.id, lease.attempt, lease.queue)).rowcount
            == 1
        )


def as_row(one: Settlement) -> tuple[int, int, str | None, int | None, int]:
    """Return a row for the statements succeed_many and continue_many."""
    return one.lease.id, one.lease.attempt, one.result, one.started_at, one.finished_at


def _success(one: Settlement) -> tuple[Any, ...]:
    """Return the values of the statement succeed."""
    lease = one.lease
    about = (one.finished_at, one.result, lease.id, lease.attempt, lease.queue, one.started_at)
    return (*about, one.progress, one.progress_text)


def _values(one: Settlement, clock: int, failure: Failure) -> dict[str, Any]:
    return {
        "id": one.lease.id,
        "attempt": one.lease.attempt,
        "queue": one.lease.queue,
        "now": one.finished_at,
        "clock": clock,
        "run_at": clock + one.delay,
        "started_at": one.started_at,
        "progress": one.progress,
        "progress_text": one.progress_text,
        "error_code": failure.code,
        "error_detail": failure.detail or None,
        "fingerprint": failure.fingerprint,
        "traceback": failure.traceback,
        "reason": one.reason or None,
    }
