"""`app.check()`: what the store finds when it looks itself over, as findings; and the repairs that are safe."""

from __future__ import annotations  # so that they cost nothing at import

import time
from collections.abc import Callable, Iterator

from ..store.base import Store
from ..store.examination import Examination
from ..wording import listed, plural
from .about_file import about_file
from .about_jobs import about_jobs
from .about_rows import about_rows
from .about_schema import about_schema
from .about_times import about_times
from .findings import Checkup, Finding, in_order

CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    about_file,
    about_schema,
    about_rows,
    about_jobs,
    about_times,
)
BEYOND_REPAIR = {
    "CORRUPT",
    "SCHEMA_OUTDATED",
    "SCHEMA_TOO_NEW",
    "NO_TABLES",
    "TABLES_MISSING",
    "READ_ONLY",
    "DISK_FULL",
}


def diagnose(found: Examination) -> list[Finding]:
    """The worst first."""
    return in_order([finding for check in CHECKS for finding in check(found)])


def check(store: Store, *, deep: bool = False, repair: bool = False) -> Checkup:
    began = time.monotonic()
    findings, repaired = diagnose(store.examine(deep)), list[str]()
    if repair:
        refusal = refuse_repair(findings)
        repaired = [] if refusal else _mend(store)
        findings = diagnose(store.examine(deep))
        if refusal:
            findings = in_order([*findings, refusal])
    return Checkup(findings, repaired, time.monotonic() - began)


def refuse_repair(findings: list[Finding]) -> Finding | None:
    """A file that is damaged must not be written to, and tables of another version are not known."""
    codes = sorted({one.code for one in findings if one.severity == "error"} & BEYOND_REPAIR)
    if not codes:
        return None
    return Finding("error", "NOT_REPAIRED", f"Nothing was repaired, because of {listed(codes)}: see to that first.")


def _mend(store: Store) -> list[str]:
    """What was done, a sentence each. Each step is safe to do while everything goes on, and to do twice."""
    made = store.restore_schema()
    deleted = store.delete_leftovers()
    recounted = store.recount_totals()
    recovered = store.recover()
    store.note_missed_endings()
    resolved = store.resolve()
    collected = store.collect_blobs()
    pages, moved = store.checkpoint()
    done = [
        (bool(made), f"Made {listed(made)} again."),
        (bool(deleted), f"Deleted {plural(deleted, 'row')} of jobs that are gone."),
        (bool(recounted), f"Corrected {plural(recounted, 'total')}."),
        (bool(recovered), f"Took back {plural(recovered, 'job')} that no living worker held."),
        (bool(resolved), "Told those who waited for something that has ended."),
        (bool(collected), f"Deleted {plural(collected, 'file')} of no job."),
        (moved == pages > 0, f"Copied {plural(pages, 'page')} of the write-ahead log into the database."),
    ]
    return [sentence for happened, sentence in done if happened]
