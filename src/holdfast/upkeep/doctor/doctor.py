"""`app.check()`: run all checks, and the repairs that lose nothing. Health: decide for scripts and containers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from ...clock import SECOND
from ...fold import MINUTE
from ...model.diagnosis import Diagnosis, HealthMetrics
from ...model.job import Sweep
from ...model.pruning import CollectBlobs
from ...store.protocol import Store
from ...text import listed, plural, span
from . import checks_jobs, checks_postgres, checks_schema, checks_sqlite
from .check import Check, Checkup, Finding, most_severe_first

# The sections of docs/reference/doctor.md. check.py says how to add a check.
SECTIONS: dict[str, tuple[Check, ...]] = {
    "The file": checks_sqlite.CHECKS,
    "Settings of the file": checks_sqlite.SETTINGS_CHECKS,
    "The server": checks_postgres.CHECKS,
    "Schema": checks_schema.CHECKS,
    "Rows": checks_jobs.ROW_CHECKS,
    "Jobs, workers, queues": checks_jobs.CHECKS,
    "Times": checks_jobs.TIME_CHECKS,
}
OF_FILES = ("The file", "Settings of the file")
OF_SERVERS = ("The server",)
BLOBS_AT_ONCE = 1000


def diagnose(diagnosis: Diagnosis) -> list[Finding]:
    """Run all checks; return the findings, the most severe first."""
    others = OF_SERVERS if diagnosis.server is None else OF_FILES
    return most_severe_first(
        finding
        for title, checks in SECTIONS.items()
        if title not in others
        for check in checks
        for finding in check.run(diagnosis)
    )


class Repair(Struct, frozen=True):
    """Who asks for a repair, and why."""

    actor: str
    reason: str = ""


def check(store: Store, *, deep: bool = False, repair: Repair | None = None) -> Checkup:
    began = time.monotonic()
    findings, repaired = diagnose(store.file.diagnose(deep)), list[str]()
    if repair is not None:
        refusal = refuse_repair(findings)
        if refusal is None:
            repaired = _repair(store, repair)
        findings = diagnose(store.file.diagnose(deep))
        if refusal is not None:
            findings = most_severe_first([*findings, refusal])
    return Checkup(findings, repaired, time.monotonic() - began)


def refuse_repair(findings: list[Finding]) -> Finding | None:
    """Return a finding if the database must not be written: it is damaged, or its tables are not known."""
    cases = [case for checks in SECTIONS.values() for check in checks for case in check.cases]
    blocking = {case.code for case in cases if case.blocks_repair}
    codes = sorted({finding.code for finding in findings if finding.severity == "error"} & blocking)
    return not_repaired(f"fix {listed(codes)} first") if codes else None


def not_repaired(reason: str) -> Finding:
    return Finding("error", "NOT_REPAIRED", f"Nothing was repaired: {reason}.")


class _Step(NamedTuple):
    """One kind of repair. Each may run while the database is in use, and may run twice."""

    what: str  # in the event log
    run: Callable[[], int]  # returns how much it has repaired
    told: str  # with {n}
    noun: str = ""
    again: bool = False  # it repairs some at a time, until it returns 0


def _repair(store: Store, repair: Repair) -> list[str]:
    """Run all repairs; return a sentence for each that changed something."""
    file, restored = store.file, list[str]()

    def restore() -> int:
        restored.extend(file.restore_schema())
        return len(restored)

    def release() -> int:
        file.insert_missed_endings()
        return store.jobs.sweep(Sweep.ENDINGS)

    def delete_blobs() -> int:
        done = store.pruning.delete(None, CollectBlobs(BLOBS_AT_ONCE), {})
        return 0 if done is None else done.rows

    def recover() -> int:
        return store.jobs.sweep(Sweep.WORKERS | Sweep.LEASES)

    steps = (
        _Step("schema", restore, "Created {names} again."),
        _Step("leftovers", file.delete_orphaned_rows, "Deleted {n} of deleted jobs.", "orphaned row", again=True),
        _Step("counts", file.recount, "Corrected {n}.", "count"),
        _Step("ends", file.repair_finish_times, "Set the finish time of {n} to now.", "job", again=True),
        _Step("running", recover, "Recovered {n} that no live worker held.", "job"),
        _Step("blocked", release, "Released jobs whose blockers have finished."),
        _Step("blobs", delete_blobs, "Deleted {n} that no job refers to.", "file", again=True),
    )
    told = list[str]()
    for step in steps:
        if count := _run(store, repair, step, restored):
            told.append(step.told.format(n=plural(count, step.noun), names=listed(restored)))
    pages, moved = file.checkpoint()
    if moved == pages > 0:
        told.append(f"Copied {plural(pages, 'page')} of the write-ahead log into the database.")
    return told


def _run(store: Store, repair: Repair, step: _Step, restored: list[str]) -> int:
    """Run a step, and log what it has done even if it fails half-way."""
    count = 0
    try:
        while some := step.run():
            count += some
            if not step.again:
                break
    finally:
        if count:
            detail = {"what": step.what, "count": count} | ({"names": restored} if step.what == "schema" else {})
            store.file.log_event(
                "repaired", repair.actor, detail | ({"reason": repair.reason} if repair.reason else {})
            )
    return count


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
