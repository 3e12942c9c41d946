"""Decide whether a database is healthy, for scripts and containers."""

from __future__ import annotations

from msgspec import Struct

from ...clock import SECOND
from ...fold import MINUTE
from ...model.diagnosis import HealthMetrics
from ...text import plural, span

# Measures of the statistics.
SUCCESSES = ("succeeded", "completed")
FAILURES = ("failed", "retry_scheduled", "recovered")


class Limits(Struct, frozen=True):
    """None: no limit. Times are seconds."""

    max_oldest_ready: float | None = 300
    max_failure_rate: float | None = 0.5
    min_attempts: int = 10  # below it, the failure rate does not count
    min_workers: int = 1
    host: str | None = None  # count only workers of this host


class Health(Struct, frozen=True):
    healthy: bool
    problems: list[str]
    oldest_ready_age: float | None
    oldest_ready_id: int | None
    failure_rate: float | None
    attempts: int
    failed_attempts: int
    workers: int

    @property
    def summary(self) -> str:
        if self.problems:
            return f"unhealthy: {'; '.join(self.problems)}"
        age, rate = self.oldest_ready_age, self.failure_rate
        waits = "nothing waits"
        if age is not None:
            waits = f"job {self.oldest_ready_id} has waited longest, {span(int(age))}"
        failed = "no attempts" if rate is None else f"{rate:.0%} of {plural(self.attempts, 'attempt')} failed"
        return f"healthy: {waits}; {failed}; {plural(self.workers, 'worker')}"


def since_minute(now: int, window_seconds: float) -> int:
    """Return the first minute of the window. The last one is the current minute."""
    return (now - round(window_seconds * SECOND)) // MINUTE


def assess(metrics: HealthMetrics, limits: Limits) -> Health:
    since = metrics.oldest_ready_since
    age = None if since is None else max(0.0, (metrics.now - since) / SECOND)
    failed = sum(metrics.attempts.get(name, 0) for name in FAILURES)
    attempts = failed + sum(metrics.attempts.get(name, 0) for name in SUCCESSES)
    rate = failed / attempts if attempts else None
    workers = sum(
        worker.state in ("alive", "unknown") and limits.host in (None, worker.record.host)
        for worker in metrics.workers
    )
    problems = list[str]()
    if age is not None and limits.max_oldest_ready is not None and age > limits.max_oldest_ready:
        limit = span(limits.max_oldest_ready)
        problems.append(f"job {metrics.oldest_ready_id} has waited for {span(int(age))}, over {limit}")
    most = limits.max_failure_rate
    if rate is not None and most is not None and rate > most and attempts >= limits.min_attempts:
        problems.append(f"{rate:.0%} of {plural(attempts, 'attempt')} failed, over {most:.0%}")
    if workers < limits.min_workers:
        where = "" if limits.host is None else " on this host"
        problems.append(f"{plural(workers, 'worker')}{where}, under {limits.min_workers}")
    return Health(not problems, problems, age, metrics.oldest_ready_id, rate, attempts, failed, workers)
