"""Out of running. Every statement is fenced by the attempt: False means that the lease was lost."""

import sqlite3
from typing import Any

from ...failure import Failure
from ...model import Lease
from .part import Part


class Settling(Part):
    def succeed(self, lease: Lease, result: str | None = None) -> bool:
        now = self._clock.now()

        def keep(connection: sqlite3.Connection) -> bool:
            return connection.execute(self._sql.succeed, (now, result, lease.id, lease.attempt)).rowcount == 1

        def forget(connection: sqlite3.Connection) -> bool:
            return connection.execute(self._sql.forget, (lease.id, lease.attempt)).rowcount == 1

        likely, other = (keep, forget) if lease.history else (forget, keep)
        # Only one of the two changes anything, so together they are as atomic as either.
        return self._ready().writer.run(lambda connection: likely(connection) or other(connection), atomic=True)

    def retry(self, lease: Lease, delay: int, failure: Failure) -> bool:
        now = self._clock.now()
        values = _failure_values(lease, failure, now) | {"run_at": now + delay}

        def work(connection: sqlite3.Connection) -> bool:
            changed = (
                connection.execute(self._sql.retry, values).rowcount == 1
                or connection.execute(self._sql.fail, values).rowcount == 1
            )
            return changed and self._remember(connection, failure, values)

        return self._ready().writer.run(work, wakes=True)

    def fail(self, lease: Lease, failure: Failure) -> bool:
        values = _failure_values(lease, failure, self._clock.now())

        def work(connection: sqlite3.Connection) -> bool:
            changed = connection.execute(self._sql.fail, values).rowcount == 1
            return changed and self._remember(connection, failure, values)

        return self._ready().writer.run(work, wakes=True)

    def _remember(self, connection: sqlite3.Connection, failure: Failure, values: dict[str, Any]) -> bool:
        if failure.fingerprint is not None:
            connection.execute(self._sql.remember_traceback, values | {"traceback": failure.traceback or ""})
        return True

    def stop(self, lease: Lease, reason: str) -> bool:
        return self._settle(self._sql.stop, lease, {"reason": reason or None})

    def snooze(self, lease: Lease, delay: int) -> bool:
        return self._settle(self._sql.snooze, lease, {"run_at": self._clock.now() + delay})

    def _settle(self, statement: str, lease: Lease, values: dict[str, Any]) -> bool:
        given = values | {"id": lease.id, "attempt": lease.attempt, "now": self._clock.now()}
        return self._ready().writer.run(
            lambda connection: connection.execute(statement, given).rowcount == 1, atomic=True, wakes=True
        )

    def release(self, lease: Lease, delay: int) -> bool:
        now = self._clock.now()
        spent = Failure("INTERNAL:ATTEMPTS_SPENT", f"released in attempt {lease.attempt}, the last")
        values = _failure_values(lease, spent, now) | {"run_at": now + delay}

        def work(connection: sqlite3.Connection) -> bool:
            return (
                connection.execute(self._sql.release, values).rowcount == 1
                or connection.execute(self._sql.fail, values).rowcount == 1
            )

        return self._ready().writer.run(work, wakes=True)

    def extend(self, lease: Lease, duration: int) -> bool:
        values = (self._clock.boot_now() + duration, self._clock.now(), lease.id, lease.attempt)
        return self._ready().writer.run(
            lambda connection: connection.execute(self._sql.extend, values).rowcount == 1, atomic=True
        )


def _failure_values(lease: Lease, failure: Failure, now: int) -> dict[str, Any]:
    return {
        "id": lease.id,
        "attempt": lease.attempt,
        "now": now,
        "error_code": failure.code,
        "error_detail": failure.detail or None,
        "fingerprint": failure.fingerprint,
    }
