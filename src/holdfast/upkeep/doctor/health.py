"""Healthy or not, for scripts and containers: what waits longest, how much fails, and who is there."""

from __future__ import annotations

from msgspec import Struct

from ...clock import SECOND
from ...fold import MINUTE
from ...model.diagnosis import Vitals
from ...text import plural, span

# How attempts end, as the minutes have it.
WELL = ("succeeded", "completed")
BADLY = ("failed", "retry_scheduled", "recovered")


class Limits(Struct, frozen=True):
    """None: it does not matter. Times are seconds."""

    max_oldest_ready: float | None = 300
    max_failure_rate: float | None = 0.5
    min_attempts: int = 10  # fewer say nothing about a rate
    min_workers: int = 1
    host: str | None = None  # only workers of this one count


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
        waits = "nothing waits" if age is None else f"job {self.oldest_ready_id} has waited longest, {span(int(age))}"
        failed = "no attempts" if rate is None else f"{rate:.0%} of {plural(self.attempts, 'attempt')} failed"
        return f"healthy: {waits}; {failed}; {plural(self.workers, 'worker')}"


def since_minute(now: int, window_seconds: float) -> int:
    """The first of the minutes that count; the last one is this one, which has not ended."""
    return (now - round(window_seconds * SECOND)) // MINUTE


def judge(vitals: Vitals, limits: Limits) -> Health:
    since = vitals.oldest_ready_since
    age = None if since is None else max(0.0, (vitals.now - since) / SECOND)
    failed = sum(vitals.ended.get(name, 0) for name in BADLY)
    attempts = failed + sum(vitals.ended.get(name, 0) for name in WELL)
    rate = failed / attempts if attempts else None
    workers = sum(
        one.presence in ("alive", "unknown") and limits.host in (None, one.record.host) for one in vitals.workers
    )
    problems = list[str]()
    if age is not None and limits.max_oldest_ready is not None and age > limits.max_oldest_ready:
        most = span(limits.max_oldest_ready)
        problems.append(f"job {vitals.oldest_ready_id} has waited for {span(int(age))}, over {most}")
    limit = limits.max_failure_rate
    if rate is not None and limit is not None and rate > limit and attempts >= limits.min_attempts:
        problems.append(f"{rate:.0%} of {plural(attempts, 'attempt')} failed, over {limit:.0%}")
    if workers < limits.min_workers:
        where = "" if limits.host is None else " on this host"
        problems.append(f"{plural(workers, 'worker')}{where}, under {limits.min_workers}")
    return Health(not problems, problems, age, vitals.oldest_ready_id, rate, attempts, failed, workers)
