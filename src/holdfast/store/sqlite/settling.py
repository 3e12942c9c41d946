"""Out of running. Every statement is fenced by the attempt: False means that the lease was lost."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ... import rollup, tally
from ...blobs import PLACEHOLDER
from ...errors import HoldfastError
from ...failure import Failure, shorten
from ...model import Lease, NewJob, Settlement, Transition
from ...rollup import Sample, grouped
from .criteria import as_json
from .linking import Linking, link_values
from .reading import get_record

NO_FAILURE = Failure("")

# The statements of each; where there are two, the second is for an attempt that was the last.
TRANSITIONS: dict[Transition, list[str]] = {
    "retry": ["retry", "fail"],
    "fail": ["fail"],
    "stop": ["stop"],
    "snooze": ["snooze"],
    "interrupt": ["interrupt"],
    "give_back": ["give_back"],
}


class Settling(Linking):
    # The clocks are read inside the work, which runs when the write lock is there.

    def succeed(self, lease: Lease, result: str | None = None) -> bool:
        if result is not None and self._vault.is_large(result):
            name, now = self._put(result), self._clock.now()
            large = Settlement(lease, "succeed", None, now, PLACEHOLDER, result_blob=name)
            return self._run(lambda connection: self.settle_here(connection, large) is not None)

        def keep(connection: sqlite3.Connection) -> bool:
            values = (self._clock.now(), result, lease.id, lease.attempt, lease.queue, None)
            return connection.execute(self._sql.succeed, values).rowcount == 1

        def forget(connection: sqlite3.Connection) -> bool:
            return connection.execute(self._sql.forget, (lease.id, lease.attempt, lease.queue)).rowcount == 1

        likely, other = (keep, forget) if lease.history else (forget, keep)
        # Only one of the two changes anything, so together they are as atomic as either.
        return self._run(lambda connection: likely(connection) or other(connection), atomic=True)

    def retry(self, lease: Lease, delay: int, failure: Failure) -> bool:
        return self._settle([self._sql.retry, self._sql.fail], lease, delay, failure)

    def fail(self, lease: Lease, failure: Failure) -> bool:
        return self._settle([self._sql.fail], lease, 0, failure)

    def release(self, lease: Lease, delay: int) -> bool:
        spent = Failure("INTERNAL:ATTEMPTS_SPENT", f"released in attempt {lease.attempt}, the last")
        return self._settle([self._sql.release, self._sql.fail], lease, delay, spent)

    def snooze(self, lease: Lease, delay: int) -> bool:
        return self._settle([self._sql.snooze], lease, delay)

    def stop(self, lease: Lease, reason: str) -> bool:
        return self._settle([self._sql.stop], lease, reason=reason)

    def _settle(
        self,
        statements: list[str],
        lease: Lease,
        delay: int = 0,
        failure: Failure = NO_FAILURE,
        reason: str = "",
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            now = self._clock.now()
            changed = self._try_each(connection, statements, _values(lease, now, now, delay, failure, reason))
            if lease.queue is None:  # nobody waits for a message
                self.resolve_here(connection)
            return changed

        return self._run(work, wakes=True)

    def settle_here(self, connection: sqlite3.Connection, one: Settlement) -> Settlement | None:
        """In a transaction that is open: the transition that a worker's attempt has come to. Returns as what it was
        settled, which may be worse than was asked for; None if the lease was lost."""
        one = self._unless_collected(connection, one)
        if one.then is not None:
            return self._continue_here(connection, one, one.then)
        if one.transition == "succeed":
            return one if self._succeed_here(connection, one) else None
        statements = [getattr(self._sql, name) for name in TRANSITIONS[one.transition]]
        failure = one.failure or NO_FAILURE
        # It ended when it ended, but comes back by the clock as it is now: that may have been set since.
        values = _values(one.lease, one.finished_at, self._clock.now(), one.delay, failure, one.reason)
        return one if self._try_each(connection, statements, values | {"started_at": one.started_at}) else None

    def _succeed_here(self, connection: sqlite3.Connection, one: Settlement) -> bool:
        lease = one.lease
        kept = (one.finished_at, one.result, lease.id, lease.attempt, lease.queue, one.started_at)
        if connection.execute(self._sql.succeed, kept).rowcount == 1:
            if one.result_blob is not None:
                connection.execute(self._sql.refer_result, (one.result_blob, lease.id))
            return True
        if one.result_blob is not None:
            connection.execute(self._sql.let_go, (one.result_blob,))
        return connection.execute(self._sql.forget, (lease.id, lease.attempt, lease.queue)).rowcount == 1

    def holds(self, lease: Lease, conn: Any) -> bool:
        """In the transaction that `conn` is: as long as it lasts, nobody else can take the job."""
        rows = as_json([(lease.id, lease.attempt)])
        return self._take_part(conn, lambda connection: bool(connection.execute(self._sql.held, (rows,)).fetchall()))

    def settle(self, one: Settlement, conn: Any, sample: Sample | None = None) -> bool:
        """In the transaction that `conn` is: what else it does, and this, happen together."""

        def work(connection: sqlite3.Connection) -> bool:
            if one.then is not None:  # and what it cannot go on with is an error here
                actual = None if self.continue_all(connection, [one]) else one
            else:
                actual = self.settle_here(connection, one)
            if actual is not None and sample is not None:
                self.add_to_minutes(connection, [self.sample_of_actual(connection, sample, one, actual)])
            self.resolve_here(connection)
            return actual is not None

        return self._take_part(conn, work)

    def sample_of_actual(
        self, connection: sqlite3.Connection, sample: Sample, asked: Settlement, actual: Settlement
    ) -> Sample:
        """What is counted where an attempt was settled otherwise than was asked for: worse, as its job says."""
        if actual.transition == asked.transition:
            return sample
        job = get_record(connection, self._sql, actual.lease.id)
        if job is None or job.status != "failed":
            return replace(sample, what="retry_scheduled", attempt=None)
        return replace(sample, what="failed", attempt=job.attempt)

    def add_to_minutes(self, connection: sqlite3.Connection, samples: Sequence[Sample]) -> None:
        for group in grouped(samples):
            connection.executemany(self._sql.add_to_minutes, rollup.rows(group))
            connection.executemany(self._sql.add_to_tallies, tally.rows(group))

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
        """They succeed, and their chains go on. A large payload, or one that waits, comes alone. Returns the lost."""
        ended = as_json([as_row(one) for one in some])
        settled = {row[0] for row in connection.execute(self._sql.continue_many, (ended,)).fetchall()}
        if settled:
            now = self._clock.now()
            large = some[0].then.args if len(some) == 1 and some[0].then is not None else None
            rows = as_json([_next_row(one, now, large) for one in some if one.lease.id in settled])
            made = connection.execute(self._sql.insert_next, (rows, large, now)).fetchall()
            if made and len(some) == 1 and some[0].then is not None and some[0].then.args_blob is not None:
                self._refer(connection, made[0][0], some[0].then.args_blob)
            links = some[0].then.links if len(some) == 1 and some[0].then is not None else None
            if links is not None and made:
                job_id = made[0][0]
                record = get_record(connection, self._sql, job_id)
                assert record is not None
                self._link(connection, [job_id], links, record.chain)
        return [one for one in some if one.lease.id not in settled]

    def _try_each(self, connection: sqlite3.Connection, statements: list[str], values: dict[str, Any]) -> bool:
        """The first of the statements that changes the row is the transition; none: the lease was lost."""
        changed = any(connection.execute(statement, values).rowcount == 1 for statement in statements)
        if changed and values["fingerprint"] is not None:
            connection.execute(self._sql.remember_traceback, values)
        return changed

    def extend(self, lease: Lease, duration: int) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            values = (self._clock.boot_now() + duration, self._clock.now(), lease.id, lease.attempt, lease.queue)
            return connection.execute(self._sql.extend, values).rowcount == 1

        return self._run(work, atomic=True)


def as_row(one: Settlement) -> tuple[int, int, str | None, int | None, int]:
    return one.lease.id, one.lease.attempt, one.result, one.started_at, one.finished_at


def _next_row(one: Settlement, now: int, large: str | None) -> tuple[Any, ...]:
    then = one.then
    assert then is not None
    policy = None if then.links is None else link_values(then.links)[0]
    return (
        one.lease.id,
        one.lease.attempt,
        then.queue,
        then.task,
        None if large is not None else then.args,
        then.first_status(now),
        then.due(now),
        then.priority,
        then.max_attempts,
        then.timeout,
        then.tags,
        policy,
        then.trace,
    )


def _values(lease: Lease, now: int, clock: int, delay: int, failure: Failure, reason: str) -> dict[str, Any]:
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
