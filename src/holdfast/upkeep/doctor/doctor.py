"""`app.check()`: what the store finds when it looks itself over, as findings; and the repairs that are safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec import Struct

from ...model.diagnosis import Examination
from ...model.job import Sweep
from ...model.pruning import OldRows
from ...store.protocol import Store
from ...text import listed, plural
from .checks_file import about_file
from .checks_jobs import about_jobs
from .checks_rows import about_rows, about_times
from .checks_schema import about_schema
from .findings import Checkup, Finding, in_order

CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    about_file,
    about_schema,
    about_rows,
    about_jobs,
    about_times,
)
SOME_BLOBS = 1000
BEYOND_REPAIR = {
    "CORRUPT",
    "SCHEMA_OUTDATED",
    "SCHEMA_TOO_NEW",
    "SCHEMA_UNSUPPORTED",
    "NO_TABLES",
    "TABLES_MISSING",
    "READ_ONLY",
    "DISK_FULL",
}


def diagnose(found: Examination) -> list[Finding]:
    """The worst first."""
    return in_order([finding for check in CHECKS for finding in check(found)])


class Repair(Struct, frozen=True):
    """Who asks for it, and why."""

    actor: str
    reason: str = ""


def check(store: Store, *, deep: bool = False, repair: Repair | None = None) -> Checkup:
    began = time.monotonic()
    findings, repaired = diagnose(store.file.examine(deep)), list[str]()
    if repair is not None:
        refusal = refuse_repair(findings)
        repaired = [] if refusal else _mend(store, repair)
        findings = diagnose(store.file.examine(deep))
        if refusal:
            findings = in_order([*findings, refusal])
    return Checkup(findings, repaired, time.monotonic() - began)


def refuse_repair(findings: list[Finding]) -> Finding | None:
    """A file that is damaged must not be written to, and tables of another version are not known."""
    codes = sorted({one.code for one in findings if one.severity == "error"} & BEYOND_REPAIR)
    if not codes:
        return None
    return Finding("error", "NOT_REPAIRED", f"Nothing was repaired, because of {listed(codes)}: see to that first.")


class _Step(NamedTuple):
    """A kind of mending. do: returns how much it has mended; again: it does some at a time, until nothing is left."""

    what: str
    do: Callable[[], int]
    sentence: Callable[[int], str]
    again: bool = False


def _mend(store: Store, repair: Repair) -> list[str]:
    """What was done, a sentence each. Each step is safe to do while everything goes on, and to do twice."""
    made, told = list[str](), list[str]()

    def restore() -> int:
        made.extend(store.file.restore_schema())
        return len(made)

    def resolve() -> int:
        store.file.note_missed_endings()
        return store.jobs.sweep(Sweep.ENDINGS)

    def collect() -> int:
        done = store.pruning.delete_old(None, OldRows("blobs", 0, SOME_BLOBS), {})
        return 0 if done is None else done.rows

    steps = (
        _Step("schema", restore, lambda _: f"Made {listed(made)} again."),
        _Step(
            "leftovers",
            store.file.delete_leftovers,
            lambda n: f"Deleted {plural(n, 'row')} of jobs that are gone.",
            True,
        ),
        _Step("counts", store.file.recount, lambda n: f"Corrected {plural(n, 'count')}."),
        _Step("ends", store.file.mend_ends, lambda n: f"Let {plural(n, 'job')} have ended now.", True),
        _Step(
            "running",
            lambda: store.jobs.sweep(Sweep.WORKERS | Sweep.LEASES),
            lambda n: f"Took back {plural(n, 'job')} that no living worker held.",
        ),
        _Step("blocked", resolve, lambda _: "Told those who waited for something that has ended."),
        _Step("blobs", collect, lambda n: f"Deleted {plural(n, 'file')} of no job.", True),
    )
    for step in steps:
        if count := _do(store, repair, step, made):
            told.append(step.sentence(count))
    pages, moved = store.file.checkpoint()
    if moved == pages > 0:
        told.append(f"Copied {plural(pages, 'page')} of the write-ahead log into the database.")
    return told


def _do(store: Store, repair: Repair, step: _Step, made: list[str]) -> int:
    """It is in the log who did it, as far as it came."""
    count = 0
    try:
        while some := step.do():
            count += some
            if not step.again:
                break
    finally:
        if count:
            detail = {"what": step.what, "count": count} | ({"names": made} if step.what == "schema" else {})
            store.file.log_event(
                "repaired", repair.actor, detail | ({"reason": repair.reason} if repair.reason else {})
            )
    return count
