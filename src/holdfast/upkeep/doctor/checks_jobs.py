"""Checks of jobs, workers, queues and blockers, of rows that belong together, and of times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from ...clock import SECOND
from ...model.diagnosis import BlockedJob, Diagnosis, ReadyJobs, Sample
from ...model.worker import WorkerState, WorkerStatus
from ...text import clean, listed, plural, short, span, word
from .check import Case, Check, Evidence, Found, always, counted, first_of, found, from_sample, ids, quoted

LONG_PAUSE = 86_400 * SECOND
SILENT_LEASES = 3  # a worker is silent after this many times its lease
MOST_NAMED = 5


def _blocked(chosen: Callable[[BlockedJob], bool]) -> Callable[[Diagnosis], Found]:
    """Find blocked jobs whose blockers have all finished or been deleted."""

    def find(diagnosis: Diagnosis) -> Found:
        jobs = [job for job in diagnosis.blocked_jobs if chosen(job)]
        if not jobs:
            return None
        causes = list(dict.fromkeys(cause for job in jobs for cause in job.failed_ids))
        return found(
            {"jobs": len(jobs), "ids": [job.id for job in jobs], "causes": causes},
            jobs=f"{plural(len(jobs), 'job')} ({_ids([job.id for job in jobs])})",
            id=str(jobs[0].id),
            causes=f"{plural(len(causes), 'job')} ({_ids(causes)})",
            cause_ids=" ".join(map(str, causes[:MOST_NAMED])),
        )

    return find


def _unless_endings(find: Callable[[Diagnosis], Found]) -> Callable[[Diagnosis], Found]:
    """Wait until the pending endings are processed, which may release the jobs."""
    return lambda diagnosis: None if diagnosis.endings else find(diagnosis)


def _ids(numbers: list[int]) -> str:
    return ids(Sample(len(numbers), tuple(numbers[:MOST_NAMED])))


def from_workers(
    workers: list[WorkerStatus], detail: dict[str, object] | None = None, **text: str
) -> Evidence | None:
    if not workers:
        return None
    names = [f"process {worker.record.pid} on {short(worker.record.host)}" for worker in workers]
    pids = [str(worker.record.pid) for worker in workers]
    return found(
        {"workers": [worker.record.id for worker in workers], **(detail or {})},
        workers=first_of(names, MOST_NAMED),
        pids=" ".join(pids),
        pid_list=",".join(pids),
        **text,
    )


def _dead_workers(diagnosis: Diagnosis) -> Evidence | None:
    held = diagnosis.samples.get("jobs_of_dead_workers", Sample())
    return from_workers(
        [one for one in diagnosis.workers if one.is_unnoticed], {"jobs": held.count}, jobs=counted(held, "job")
    )


def _silent_workers(diagnosis: Diagnosis) -> Evidence | None:
    workers = [(worker, diagnosis.now - worker.record.heartbeat_at) for worker in diagnosis.live_workers]
    silent = [(worker, age) for worker, age in workers if age > SILENT_LEASES * worker.record.lease]
    longest = max((age for _, age in silent), default=0)
    return from_workers([worker for worker, _ in silent], time=span(longest / SECOND))


def _ready(diagnosis: Diagnosis, problem: str) -> Evidence | None:
    """Find ready jobs with the given problem: none of the live workers has the task, its version, or the queue."""
    jobs = [group for group in diagnosis.ready_jobs if _problem(group, diagnosis.live_workers) == problem]
    if not jobs:
        return None
    queues = list(dict.fromkeys(group.queue for group in jobs))
    more = " or more" if any(group.more for group in jobs) else ""
    return found(
        {"waiting": [{"queue": group.queue, "task": group.task, "count": group.count} for group in jobs]},
        jobs=plural(sum(group.count for group in jobs), "job") + more,
        tasks=first_of(list(dict.fromkeys(short(group.task) for group in jobs)), MOST_NAMED),
        queues=first_of([short(name) for name in queues], MOST_NAMED),
        queue_list=",".join(word(name) for name in queues[:MOST_NAMED]),
    )


def _problem(group: ReadyJobs, workers: list[WorkerStatus]) -> str | None:
    if not workers:
        return "no worker"
    able = [worker.record for worker in workers if group.task in worker.record.tasks]
    if not able:
        return "unknown task"
    if all(worker.version_of(group.task) < group.version for worker in able):
        return "old version"
    served = any(worker.queues is None or group.queue in worker.queues for worker in able)
    return None if served else "unserved queue"


def _long_pauses(diagnosis: Diagnosis) -> list[Evidence]:
    return [
        found(
            {"queue": queue.name},
            queue=short(queue.name),
            quoted_queue=word(queue.name),
            time=span((diagnosis.now - queue.paused_at) / SECOND),
        )
        for queue in diagnosis.paused_queues
        if queue.has_ready_jobs and diagnosis.now - queue.paused_at > LONG_PAUSE
    ]


def _other_pauses(diagnosis: Diagnosis) -> Evidence | None:
    long = {evidence.detail["queue"] for evidence in _long_pauses(diagnosis)}
    names = [queue.name for queue in diagnosis.paused_queues if queue.name not in long]
    if not names:
        return None
    return found(
        {"queues": names}, queues=first_of([short(name) for name in names], MOST_NAMED), queue=word(names[0])
    )


def _endings(diagnosis: Diagnosis) -> Evidence | None:
    count = diagnosis.endings
    return found({"endings": count}, jobs=plural(count, "job")) if count else None


def _open_batches(state: WorkerState) -> Callable[[Diagnosis], Found]:
    """Find batches whose block has not ended, by whether its process is alive."""

    def find(diagnosis: Diagnosis) -> Found:
        batches = sorted(id for id, found in diagnosis.open_batches.items() if found == state)
        return found({"batches": batches}, batches=_ids(batches), id=str(batches[0])) if batches else None

    return find


def _abandoned_batches(diagnosis: Diagnosis) -> Evidence | None:
    sample = diagnosis.samples.get("abandoned_batches")
    return found({"batches": sample.ids}, batches=ids(sample), id=str(sample.ids[0])) if sample else None


REPAIR = "holdfast doctor --repair {database}"
START = "holdfast worker module:app"
LEASES = ("expired_leases", "jobs_of_dead_workers")
BLOCKED = ("blocked_jobs", "blocked_without_blockers", "endings")

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
CHECKS = (
    Check("Does every running job have a live worker or a lease?", needs=LEASES, cases=(
        Case("STUCK_JOBS", "error", lambda d: from_sample(d, "expired_leases") if d.live_workers else None,
            "Running past the lease, and not held by a live worker: {jobs}.",
            "A worker is running and should have recovered them by now: see its log.",
            REPAIR),
        Case("STUCK_JOBS", "warning", lambda d: None if d.live_workers else from_sample(d, "expired_leases"),
            "Running past the lease, and not held by a live worker: {jobs}.",
            "The next worker, or the next receive, recovers them.",
            REPAIR),
        Case("STUCK_JOBS", "ok", lambda d: not d.samples["jobs_of_dead_workers"],
            "Every running job has a live worker or a lease."),
    )),
    Check("Does every blocked job wait for something that can still happen?", needs=BLOCKED, cases=(
        Case("ENDINGS_LEFT", "note", _endings,
            "Jobs that have finished, and whose dependents are not released yet: {jobs}.",
            "A worker does that within a second; without a worker, the dependents stay blocked.",
            REPAIR),
        Case("STUCK_BLOCKED", "error", _unless_endings(_blocked(lambda job: job.can_be_released)),
            "Blocked, though all blockers have finished: {jobs}.",
            "Rows were changed by hand, or the end of a blocker was not recorded. `--repair` releases them.",
            REPAIR),
        Case("STUCK_BLOCKED", "error", _unless_endings(lambda d: from_sample(d, "blocked_without_blockers")),
            "Blocked, though there are no blockers: {jobs}.",
            "Rows were changed by hand. Cancel the jobs.",
            "holdfast cancel {id} {database}"),
        Case("BLOCKED_BY_DELETED", "warning", _blocked(lambda job: not job.can_be_released and job.deleted > 0),
            "Blocked by a deleted job: {jobs}.",
            "They would wait for ever: cancel them.",
            "holdfast cancel {id} {database}"),
        Case("BLOCKED_BY_FAILED", "note", _blocked(lambda job: not job.can_be_released and not job.deleted),
            "Blocked by jobs that failed or were cancelled: {jobs}, by {causes}.",
            "They continue when their blockers have succeeded.",
            "holdfast retry {cause_ids} {database}"),
        Case("BLOCKED_JOBS", "ok", always, "Every blocked job waits for something that can still happen."),
    )),
    Check("Do the blocks of batches end?", needs=("open_batches", "abandoned_batches"), cases=(
        Case("OPEN_BATCHES", "warning", _open_batches("lost"),
            "Open, and the process of the block that made it has died: batch {batches}.",
            "It is never done. A running worker seals it at once.",
            REPAIR),
        Case("OPEN_BATCHES", "warning", _open_batches("unknown"),
            "Open, and it is unknown whether the block that made it has ended: batch {batches}.",
            "Its lock file was removed, or the server was restarted. If its process is gone, it is never done. Seal "
            "it then.",
            "holdfast batch seal {id} {database}"),
        Case("ABANDONED_BATCHES", "note", _abandoned_batches,
            "Abandoned in the last day, because the block raised or its process died: batch {batches}.",
            "Not all members may have been added, and on_success does not run. Do the work again if it is needed.",
            "holdfast batch show {id} {database}"),
    )),
    Check("Are the workers alive?", needs=("workers",), cases=(
        Case("DEAD_WORKERS", "warning", _dead_workers,
            "Workers that died: {workers}. They still hold {jobs}.",
            "A live worker recovers such jobs at once; none has done so.",
            REPAIR),
        Case("SUSPENDED_WORKERS", "warning", lambda d: from_workers(d.workers_that_are("suspended")),
            "Workers stopped by a signal: {workers}.",
            "They do nothing until they are continued.",
            "kill -CONT {pids}"),
        Case("SILENT_WORKERS", "warning", _silent_workers,
            "Workers without a heartbeat for up to {time}: {workers}.",
            "A handler may block the interpreter, the process may hang, or, with SQLite, it is on another machine, "
            "which is not allowed.",
            "ps -fp {pid_list}"),
        Case("WORKERS", "ok", lambda d: found({"alive": len(d.live_workers)}, count=str(len(d.live_workers))),
            "Live workers: {count}."),
    )),
    Check("Does every ready job have a worker that can run it?", needs=("ready_jobs", "workers"), cases=(
        Case("NO_WORKERS", "warning", lambda d: _ready(d, "no worker"),
            "Ready, and no worker is running: {jobs}.",
            fix=START),
        Case("UNKNOWN_TASKS", "warning", lambda d: _ready(d, "unknown task"),
            "Ready, and no running worker has the task: {jobs} of {tasks}.",
            "They wait for a worker that has the code. Was the task renamed or removed?",
            START),
        Case("OLD_WORKERS", "warning", lambda d: _ready(d, "old version"),
            "Ready, and all running workers have an older version of the task: some of {jobs} of {tasks}.",
            "They wait for a worker that has the version with which they were enqueued.",
            START),
        Case("UNSERVED_QUEUES", "warning", lambda d: _ready(d, "unserved queue"),
            "Ready, and no worker that has the task serves the queue: {jobs} in {queues}.",
            fix=f"{START} --queues {{queue_list}}"),
        Case("READY_JOBS", "ok", always, "Every ready job has a worker that can run it."),
    )),
    Check("Do the payloads fit the code of the workers?", cases=(
        Case("UNFIT_JOBS", "warning", "unfit_jobs",
            "Given back, because the payload does not fit the code of the workers that have tried it: {jobs}.",
            "They wait for a worker with newer code, and fail after payload_timeout. Is old code running?",
            "holdfast explain {id} {database}"),
    )),
    Check("Do scheduled jobs become ready when they are due?", cases=(
        Case("LATE_JOBS", "warning", "late_jobs",
            "Due more than a minute ago, and still scheduled: {jobs}.",
            "No worker makes them ready.",
            START),
    )),
    Check("Are jobs cancelled when they expire?", cases=(
        Case("EXPIRED_JOBS", "warning", "expired_jobs",
            "Expired more than a minute ago, and still waiting: {jobs}.",
            "No worker cancels them, or fails them if they are external.",
            START),
    )),
    Check("Are queues paused?", needs=("paused_queues",), cases=(
        Case("PAUSED_QUEUE", "warning", _long_pauses,
            "The queue {queue} has been paused for {time}, and jobs wait in it.",
            "Was it forgotten?",
            "holdfast queues resume {quoted_queue} {database}"),
        Case("PAUSED_QUEUE", "note", _other_pauses,
            "Paused queues: {queues}.",
            fix="holdfast queues resume {queue} {database}"),
    )),
)
# fmt: on

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
CLOCK_GUIDE = "guides/operating.md#the-clock-was-set"
UNIT_GUIDE = "guides/plain-sql.md"

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
ROW_CHECKS = (
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
