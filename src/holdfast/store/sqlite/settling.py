"""Out of running. Every statement is fenced by the attempt: False means that the lease was lost."""

import sqlite3

from ...failure import Failure
from ...model import Lease
from .part import Part

NO_FAILURE = Failure("")


class Settling(Part):
    # The clocks are read inside the work, which runs when the write lock is there.

    def succeed(self, lease: Lease, result: str | None = None) -> bool:
        def keep(connection: sqlite3.Connection) -> bool:
            values = (self._clock.now(), result, lease.id, lease.attempt, lease.queue)
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
        """The first of the statements that changes the row is the transition; none: the lease was lost."""

        def work(connection: sqlite3.Connection) -> bool:
            now = self._clock.now()
            values = {
                "id": lease.id,
                "attempt": lease.attempt,
                "queue": lease.queue,
                "now": now,
                "run_at": now + delay,
                "error_code": failure.code,
                "error_detail": failure.detail or None,
                "fingerprint": failure.fingerprint,
                "traceback": failure.traceback,
                "reason": reason or None,
            }
            changed = any(connection.execute(statement, values).rowcount == 1 for statement in statements)
            if changed and failure.fingerprint is not None:
                connection.execute(self._sql.remember_traceback, values)
            return changed

        return self._run(work, wakes=True)

    def extend(self, lease: Lease, duration: int) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            values = (self._clock.boot_now() + duration, self._clock.now(), lease.id, lease.attempt, lease.queue)
            return connection.execute(self._sql.extend, values).rowcount == 1

        return self._run(work, atomic=True)
