"""Why nobody has taken a job that could be taken: what is in the way, from the outside in."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Sequence

from ..model import JobRecord, WorkerRecord
from ..store.circumstances import Attendance, Situation
from ..store.protocol import Store
from ..wording import plural, short, subject, word

MOST_AHEAD = 1000
MOST_KINDS = 10
START_ONE = "holdfast worker module:app"

Told = tuple[str, str]  # a reason and an advice


def why_not_taken(store: Store, situation: Situation, stand: str) -> Told:
    """stand: how it is, such as 'is ready'."""
    job = situation.record
    it = f"{subject(job.id, job.task)} {stand}"
    if situation.paused:
        return (
            f"{it}, but its queue {short(job.queue)} is paused, so nobody takes it.",
            f"Resume the queue: holdfast queues resume {word(job.queue)}",
        )
    if job.attempt >= job.max_attempts:
        return (
            f"{it}, but its {plural(job.max_attempts, 'attempt')} are spent, so nobody takes it: "
            "somebody has changed its row by hand.",
            f"Give it more attempts: holdfast cancel {job.id}, then holdfast retry {job.id}",
        )
    if job.task is None:
        return _message(store, job, it)
    workers = [worker for worker in store.workers.list() if worker.is_present]
    candidates = [worker for worker in workers if worker.presence != "stopped" and _serves(worker.record, job)]
    if not candidates:
        return _nobody(workers, job, it)
    return _in_line(store, job, candidates, it)


def _serves(worker: WorkerRecord, job: JobRecord) -> bool:
    return job.task in worker.tasks and (worker.queues is None or job.queue in worker.queues)


def _message(store: Store, job: JobRecord, it: str) -> Told:
    queue = short(job.queue)
    count = store.workflows.ahead_of(job, None, (), MOST_AHEAD + 1)
    before = f"; {_ahead(count, 'message')} ahead of it" if count else ""
    return (
        f"{it}: it waits for somebody to receive from the queue {queue}{before}.",
        f"Receive it: app.queue({job.queue!r}).receive()",
    )


def _nobody(workers: Sequence[Attendance], job: JobRecord, it: str) -> Told:
    task, queue = short(job.task or ""), short(job.queue)
    if not workers:
        return f"{it}, but no worker is running.", f"Start one that has the task {task}: {START_ONE}"
    knowing = [worker for worker in workers if job.task in worker.record.tasks]
    if not knowing:
        who = "the running worker does not have" if len(workers) == 1 else f"none of {len(workers)} workers has"
        return f"{it}, but {who} the task {task}.", f"Start a worker that has it: {START_ONE}"
    serving = [worker for worker in knowing if _serves(worker.record, job)]
    if not serving:
        queues = sorted({short(name) for worker in knowing for name in worker.record.queues or ()})
        more = f" and {len(queues) - 5} more" if len(queues) > 5 else ""
        who = "the worker that has its task serves" if len(knowing) == 1 else "the workers that have its task serve"
        return (
            f"{it}, but {who} other queues than {queue}: {', '.join(queues[:5])}{more}.",
            f"Start a worker for it: {START_ONE} --queues {word(job.queue)}",
        )
    place = f"process {serving[0].record.pid} on {short(serving[0].record.host)}"
    who = (
        "the worker that could take it" if len(serving) == 1 else f"each of {len(serving)} workers that could take it"
    )
    return (
        f"{it}, but {who} was stopped by a signal ({place}).",
        f"Let it go on: kill -CONT {serving[0].record.pid}",
    )


def _in_line(store: Store, job: JobRecord, candidates: Sequence[Attendance], it: str) -> Told:
    workers = [one.record for one in candidates]
    count = _count_ahead(store, job, workers)
    before = f"{_ahead(count, 'job')} ahead of it" if count else ""
    full = [_in_the_way(one, job) for one in candidates]
    who = "the worker that could take it" if len(workers) == 1 else f"{len(workers)} workers that could take it"
    if all(full):
        also = f"; {before}" if before else ""
        if all(reason == "queue" for reason in full):
            most = plural(sum(worker.limits.queues[job.queue] for worker in workers), "job")
            is_at = "is at its limit" if len(workers) == 1 else "are at their limits"
            return (
                f"{it}, and waits for its turn: {who} {is_at} for the queue {short(job.queue)}, {most} at a time"
                f"{also}.",
                f"Wait, or start another worker: {START_ONE} --queues {word(job.queue)}",
            )
        places = sum(_places(worker, job) for worker in workers)
        taken_up = f"the only place of {who} is taken" if places == 1 else f"all {places:,} places of {who} are taken"
        return (
            f"{it}, and waits for its turn: {taken_up}{also}.",
            f"Wait, or start another worker: {START_ONE}",
        )
    if before:
        return f"{it}, and {before}.", f"Wait, or start another worker: {START_ONE}"
    return (
        f"{it}, and the next to be taken by {who}.",
        f"Wait a moment, and look again: holdfast explain {job.id}",
    )


def _places(worker: WorkerRecord, job: JobRecord) -> int:
    return worker.limits.pool if job.task in worker.limits.pool_tasks else worker.concurrency


def _in_the_way(candidate: Attendance, job: JobRecord) -> str | None:
    """Tell what keeps the worker from taking one more: the queue's own limit, or that all its places are taken."""
    worker, taken = candidate.record, candidate.taken
    limit = worker.limits.queues.get(job.queue)
    if limit is not None and sum(count for queue, _, count in taken if queue == job.queue) >= limit:
        return "queue"
    in_pool = job.task in worker.limits.pool_tasks
    used = sum(count for _, task, count in taken if (task in worker.limits.pool_tasks) == in_pool)
    return "places" if used >= _places(worker, job) else None


def _count_ahead(store: Store, job: JobRecord, workers: Sequence[WorkerRecord]) -> int:
    """For the worker that gets to it first. Those that are alike need not be asked twice."""
    kinds: dict[tuple[tuple[str, ...] | None, tuple[str, ...]], None] = {}
    for worker in workers:
        in_pool = job.task in worker.limits.pool_tasks
        tasks = tuple(task for task in worker.tasks if (task in worker.limits.pool_tasks) == in_pool)
        kinds[_queues_before(worker, job), tasks] = None
    return min(store.workflows.ahead_of(job, *kind, MOST_AHEAD + 1) for kind in list(kinds)[:MOST_KINDS])


def _queues_before(worker: WorkerRecord, job: JobRecord) -> tuple[str, ...] | None:
    """In the order in which it takes from them, up to the job's own."""
    if worker.queues is None:
        return None
    return (job.queue,) if worker.limits.weighted else worker.queues[: worker.queues.index(job.queue) + 1]


def _ahead(count: int, noun: str) -> str:
    if count > MOST_AHEAD:
        return f"more than {MOST_AHEAD:,} {noun}s are"
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"
