"""Checks of rows that refer to each other, of statistics, and of times."""

from __future__ import annotations

from pathlib import PurePath

from ...clock import SECOND
from ...model.diagnosis import Diagnosis, Sample
from ...text import clean, listed, plural, short, span
from .check import Case, Check, Evidence, always, counted, first_of, found, ids, quoted
from .checks_jobs import from_workers

TABLES_OF_JOBS = ("events", "tags", "blockers")
MOST_COUNTS = 3
MOST_CONSTRAINTS = 5
MOST_IDS = 10
MOST_BLOBS = 100  # in the detail
CLOCK_TOLERANCE = 60 * SECOND


def _orphaned_rows(diagnosis: Diagnosis) -> Evidence | None:
    samples = {table: diagnosis.samples.get(f"orphaned_{table}", Sample()) for table in TABLES_OF_JOBS}
    samples = {table: sample for table, sample in samples.items() if sample}
    if not samples:
        return None
    return found(
        {table: {"jobs": sample.count, "ids": sample.ids} for table, sample in samples.items()},
        rows=listed([f"{table} of {counted(sample, 'job')}" for table, sample in samples.items()]),
    )


def _deleted_batches(diagnosis: Diagnosis) -> Evidence | None:
    sample = diagnosis.samples.get("deleted_batches")
    return found({"batches": sample.ids}, batches=ids(sample)) if sample else None


def _broken_constraints(diagnosis: Diagnosis) -> Evidence | None:
    broken = diagnosis.broken_rows
    if not broken:
        return None
    rows = [
        f"{plural(one.count, 'row')} of {short(one.table)} ({one.constraint})" for one in broken[:MOST_CONSTRAINTS]
    ]
    if more := len(broken) - MOST_CONSTRAINTS if len(broken) > MOST_CONSTRAINTS else 0:
        rows.append(f"{more} more")
    detail = [{"table": one.table, "constraint": one.constraint, "rows": one.count} for one in broken]
    return found({"broken": detail}, rows=listed(rows), tables=listed(sorted({one.table for one in broken})))


def _broken_foreign_keys(diagnosis: Diagnosis) -> Evidence | None:
    tables = diagnosis.foreign_keys
    rows = listed([f"{plural(count, 'row')} of {short(table)}" for table, count in tables.items()])
    return found({"tables": tables}, rows=rows) if tables else None


def _missing_blobs(diagnosis: Diagnosis) -> Evidence | None:
    missing, folder = diagnosis.large_payloads.missing, diagnosis.large_payloads.folder
    if not missing:
        return None
    jobs = list(dict.fromkeys(blob.job_id for blob in missing))
    # Files are named after their content, so a file that is there already is the same.
    restore = "" if folder is None else f"cp -au {quoted(f'/a/backup/{PurePath(folder).name}/.', folder)} && "
    return found(
        {"blobs": [[blob.job_id, blob.what, blob.name] for blob in missing[:MOST_BLOBS]]},
        count=f"{len(missing):,}",
        jobs=f"{plural(len(jobs), 'job')} ({ids(Sample(len(jobs), tuple(jobs[:MOST_IDS])))})",
        blobs=clean(folder or "the blob store"),
        restore_backup=restore,
    )


def _orphaned_blobs(diagnosis: Diagnosis) -> Evidence | None:
    orphaned = diagnosis.large_payloads.orphaned
    return found({"files": orphaned}, files=plural(orphaned, "file")) if orphaned else None


def _wrong_counts(diagnosis: Diagnosis) -> Evidence | None:
    wrong = diagnosis.counts
    if not wrong:
        return None
    named = [
        f"{status} {short(task) or 'messages'} in {short(queue)} ({counted:,} instead of {actual:,})"
        for queue, task, status, counted, actual in wrong
    ]
    return found({"counts": [list(count) for count in wrong]}, counts=first_of(named, MOST_COUNTS))


def _heartbeat_in_future(diagnosis: Diagnosis) -> Evidence | None:
    now = diagnosis.now
    ahead = [worker for worker in diagnosis.workers if worker.record.heartbeat_at > now + CLOCK_TOLERANCE]
    latest = max((worker.record.heartbeat_at for worker in ahead), default=now)
    return from_workers(ahead, time=span((latest - now) / SECOND))


def _clock_steps(diagnosis: Diagnosis) -> Evidence | None:
    steps, largest = diagnosis.clock.steps_back, diagnosis.clock.largest_step / SECOND
    detail = {"steps": steps, "largest_seconds": largest}
    return found(detail, steps=plural(steps, "time"), largest=span(largest)) if steps else None


def _is_of_another_boot(diagnosis: Diagnosis) -> bool:
    return diagnosis.clock.stored_boot_id not in (None, diagnosis.clock.boot_id)


def _used_elsewhere(diagnosis: Diagnosis) -> Evidence | None:
    return from_workers(diagnosis.workers_that_are("alive", "suspended")) if _is_of_another_boot(diagnosis) else None


BY_HAND = (
    "Rows of {prefix}jobs were deleted alone: with foreign keys off, which is SQLite's default, or with triggers off."
)
REPAIR = "holdfast doctor --repair {database}"
CLOCK_GUIDE = "guides/operating.md#the-clock-was-set"
UNIT_GUIDE = "guides/plain-sql.md"

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
CHECKS = (
    Check("Does every row belong to a job?", needs=tuple(f"orphaned_{table}" for table in TABLES_OF_JOBS), cases=(
        Case("ORPHANED_ROWS", "warning", _orphaned_rows,
            "Orphaned rows of deleted jobs: {rows}.",
            f"{BY_HAND} Orphaned rows take up space and do no other harm. `--repair` deletes them.",
            REPAIR),
        Case("ORPHANED_ROWS", "ok", always, "There is no history, tag or blocker of a deleted job."),
    )),
    Check("Does every chain have its first job?", cases=(
        Case("CHAINS_WITHOUT_ROOT", "warning", "chains_without_root",
            "Chains whose first job was deleted by hand continue with {jobs}.",
            "The other jobs run, but nothing can wait for the whole chain. Delete it when it has finished.",
            "holdfast delete {id} --chain {database}"),
    )),
    Check("Does every batch still exist?", needs=("deleted_batches",), cases=(
        Case("MEMBERS_WITHOUT_BATCH", "warning", _deleted_batches,
            "Deleted by hand, while jobs are members: batch {batches}.",
            "The jobs run, and nothing is enqueued when all have finished."),
    )),
    Check("Does every row keep to the constraints of its table?", needs=("broken_rows",), cases=(
        Case("ROWS_DAMAGED", "error", _broken_constraints,
            "Rows with values that the schema does not allow: {rows}.",
            "They were written with constraints switched off, or the file was damaged. Commands show a neutral value "
            "in their place. A worker that meets such a job fails it with INTERNAL:DAMAGED_ROW; other jobs are not "
            "affected. Correct the rows of {tables} with SQL, or delete them."),
        Case("ROWS", "ok", always, "Every row keeps to the constraints of its table."),
    )),
    Check("Do foreign keys of all tables refer to existing rows? (with --deep)", needs=("foreign_keys",), cases=(
        Case("FOREIGN_KEYS_BROKEN", "warning", _broken_foreign_keys,
            "Rows that refer to missing rows: {rows}.",
            "The missing rows were deleted with foreign keys off. `--repair` deletes those of Holdfast's tables.",
            REPAIR),
    )),
    Check("Is every large payload and result there?", needs=("large_payloads",), cases=(
        Case("BLOBS_MISSING", "error", _missing_blobs,
            "Large payloads or results missing from {blobs}: {count}, of {jobs}.",
            "A job without its payload fails with RESOURCE:BLOB_MISSING when it runs; other jobs are not affected. "
            "Restore them from a backup (files that no job needs do no harm), then retry the failed jobs.",
            "{restore_backup}holdfast retry --error-code RESOURCE:BLOB_MISSING {database}",
            guide="guides/operating.md#a-payload-is-missing"),
        Case("BLOBS_ORPHANED", "note", _orphaned_blobs,
            "No job refers to {files} beside the database.",
            "A crash or a restored backup left them. Workers delete them in the background.",
            REPAIR),
        Case("BLOBS", "ok", always, "Every large payload and result is there."),
    )),
    Check("Do the statistics count as many jobs as there are?", needs=("counts",), cases=(
        Case("COUNTS_WRONG", "warning", _wrong_counts,
            "Wrong counts of jobs: {counts}.",
            "Only counts and charts are affected, jobs are not. `--repair` counts the jobs again.",
            REPAIR, guide="reference/schema.md#statistics"),
        Case("COUNTS", "ok", always, "The statistics count as many jobs as there are."),
    )),
)
# fmt: on

# fmt: off
TIME_CHECKS = (
    Check("Are all times plausible?", needs=("clock",), cases=(
        Case("CREATED_IN_FUTURE", "warning", "created_in_future",
            "Created in the future: {jobs}.",
            "The clock of this machine was set back, or that of another one is wrong. Scheduled jobs may run late.",
            "timedatectl status", guide=CLOCK_GUIDE),
        Case("HEARTBEAT_IN_FUTURE", "warning", _heartbeat_in_future,
            "The last heartbeat is up to {time} in the future: {workers}.",
            "The clock was set back. Schedules are affected, leases are not.",
            "timedatectl status", guide=CLOCK_GUIDE),
        Case("CLOCK_STEPPED_BACK", "note", _clock_steps,
            "In the newest events the time went back {steps}, by {largest} at most.",
            "The clock was set, or the clocks of two machines differ. Schedules and ages are affected, leases are "
            "not.",
            "timedatectl status", guide=CLOCK_GUIDE),
        Case("ENDED_IN_FUTURE", "warning", "finished_in_future",
            "Finished in the future: {jobs}.",
            "The clock was set back, or rows were changed by hand. The jobs are pruned too late. `--repair` sets "
            "`finished_at` to now.",
            REPAIR),
        Case("ENDED_WITHOUT_TIME", "warning", "finished_without_time",
            "Finished, without a `finished_at`: {jobs}.",
            "The status was changed by hand. The jobs are never pruned. `--repair` sets `finished_at` to now.",
            REPAIR),
        Case("TIMES_IN_WRONG_UNIT", "warning", "times_in_wrong_unit",
            "With a created_at or run_at before 2001: {jobs}.",
            "The program that inserts them by SQL writes seconds or milliseconds instead of microseconds.",
            "holdfast show {id} {database}", guide=UNIT_GUIDE),
        Case("FAR_IN_FUTURE", "note", "scheduled_far_in_future",
            "Scheduled for more than ten years from now: {jobs}.",
            "Is the unit wrong? Times are microseconds.",
            "holdfast run-now {id} {database}", guide=UNIT_GUIDE),
        Case("ANOTHER_MACHINE", "error", _used_elsewhere,
            "A worker of another machine, or of an earlier boot of this one, uses the database: {workers}.",
            "SQLite is for one machine: leases of one machine mean nothing on another."),
        Case("NOT_OPENED_SINCE_BOOT", "note", lambda d: _is_of_another_boot(d) and not _used_elsewhere(d),
            "Holdfast has not opened the database since the machine was started.",
            "Jobs that were running are recovered when it does."),
        Case("CLOCK", "ok", always, "All times are plausible."),
    )),
)
# fmt: on
