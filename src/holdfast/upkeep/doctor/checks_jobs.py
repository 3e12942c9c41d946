"""Checks of jobs that make no progress, of workers, and of queues."""

from __future__ import annotations

from collections.abc import Callable

from ...clock import SECOND
from ...model.diagnosis import BlockedJob, Diagnosis, ReadyJobs, Sample
from ...model.worker import WorkerState, WorkerStatus
from ...text import plural, short, span, word
from .check import Case, Check, Evidence, Found, always, counted, first_of, found, from_sample, ids

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
