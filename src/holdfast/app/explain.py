"""`app.jobs.explain(id)`: why a job is in its state, in one sentence, and what would change that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .. import validate
from ..clock import SECOND
from ..errors import JobNotFound
from ..model.job import JobRecord, Status
from ..model.worker import WorkerRecord, WorkerStatus
from ..model.workflow import Blocker, Blockers, JobDetails
from ..store.protocol import Store
from ..text import ahead, error, listed, moment, numbered, plural, short, span, subject, whole, word

if TYPE_CHECKING:
    from .app import App


MAX_AHEAD = 1000
MAX_KINDS = 10
START_WORKER = "holdfast worker module:app"
NEWER_CODE = (
    "A worker with code that fits runs it; after payload_timeout, an hour by default, it fails. Deploy that code, or "
    "cancel the job: holdfast cancel {id}"
)
ReasonAndAdvice = tuple[str, str]


def why_not_claimed(store: Store, details: JobDetails, state: str) -> ReasonAndAdvice:
    """Explain why no worker has claimed a due job. state: such as 'is ready'."""
    job = details.record
    it = f"{subject(job.id, job.task)} {state}"
    if details.paused:
        return (
            f"{it}, but its queue {short(job.queue)} is paused.",
            f"Resume the queue: holdfast queues resume {word(job.queue)}",
        )
    if job.attempt >= job.max_attempts:
        return (
            f"{it}, but has no attempts left of {job.max_attempts:,}, so no worker takes it: "
            "its row was changed by hand.",
            f"Give it more attempts: holdfast cancel {job.id}, then holdfast retry {job.id}",
        )
    if job.task is None:
        return _message(store, job, it)
    if job.unfit_since is not None:
        return f"{it}, but {_unfit(details)}.", NEWER_CODE.format(id=job.id)
    workers = [worker for worker in store.workers.list() if worker.is_present]
    candidates = [worker for worker in workers if worker.state != "suspended" and _serves(worker.record, job)]
    if not candidates:
        return _no_worker(workers, job, it)
    return _queued(store, job, candidates, it)


def _serves(worker: WorkerRecord, job: JobRecord) -> bool:
    in_queues = worker.queues is None or job.queue in worker.queues
    return job.task in worker.tasks and in_queues and worker.version_of(job.task) >= job.version


def _unfit(details: JobDetails) -> str:
    """Say that the payload does not fit, since when, and why."""
    since = moment(details.record.unfit_since or 0)
    why = f" ({short(details.reason)})" if details.reason else ""
    return f"its payload does not fit the code of any worker that has tried it since {since}{why}"


def _message(store: Store, job: JobRecord, it: str) -> ReasonAndAdvice:
    queue = short(job.queue)
    count = store.workflows.count_ahead(job, None, (), MAX_AHEAD + 1)
    before = f"; {_ahead(count, 'message')} ahead of it" if count else ""
    return (
        f"{it}: it waits for a consumer of queue {queue}{before}.",
        f"Receive it: app.queue({job.queue!r}).receive()",
    )


def _no_worker(workers: Sequence[WorkerStatus], job: JobRecord, it: str) -> ReasonAndAdvice:
    task, queue = short(job.task or ""), short(job.queue)
    if not workers:
        return f"{it}, but no worker is running.", f"Start one that has the task {task}: {START_WORKER}"
    knowing = [worker for worker in workers if job.task in worker.record.tasks]
    if not knowing:
        who = "the running worker does not have" if len(workers) == 1 else f"none of {len(workers)} workers has"
        return f"{it}, but {who} the task {task}.", f"Start a worker that has it: {START_WORKER}"
    newest = max(worker.record.version_of(job.task) for worker in knowing)
    if newest < job.version:
        has = f"version {newest}" if newest else "no version"
        return (
            f"{it}, but it needs version {job.version} of the task {task}, and the running workers have {has}.",
            f"Start a worker that has it: {START_WORKER}",
        )
    serving = [worker for worker in knowing if _serves(worker.record, job)]
    if not serving:
        queues = sorted({short(name) for worker in knowing for name in worker.record.queues or ()})
        more = f" and {len(queues) - 5} more" if len(queues) > 5 else ""
        who = "the worker that has its task serves" if len(knowing) == 1 else "the workers that have its task serve"
        return (
            f"{it}, but {who} other queues than {queue}: {', '.join(queues[:5])}{more}.",
            f"Start a worker for it: {START_WORKER} --queues {word(job.queue)}",
        )
    place = f"process {serving[0].record.pid} on {short(serving[0].record.host)}"
    who = "the worker that can run it is" if len(serving) == 1 else f"all {len(serving)} workers that can run it are"
    return (
        f"{it}, but {who} suspended by a signal ({place}).",
        f"Resume it: kill -CONT {serving[0].record.pid}",
    )


def _queued(store: Store, job: JobRecord, candidates: Sequence[WorkerStatus], it: str) -> ReasonAndAdvice:
    workers = [one.record for one in candidates]
    count = _count_ahead(store, job, workers)
    before = f"{_ahead(count, 'job')} ahead of it" if count else ""
    full = [_limit_reached(one, job) for one in candidates]
    who = "the worker that can run it" if len(workers) == 1 else f"{len(workers)} workers that can run it"
    if all(full):
        also = f"; {before}" if before else ""
        if all(reason == "queue" for reason in full):
            most = plural(sum(worker.limits.queues[job.queue] for worker in workers), "job")
            is_at = "is at its limit" if len(workers) == 1 else "are at their limits"
            return (
                f"{it}, but {who} {is_at} for queue {short(job.queue)}, {most} at a time{also}.",
                f"Wait, or start another worker: {START_WORKER} --queues {word(job.queue)}",
            )
        slots = sum(_slots(worker, job) for worker in workers)
        busy = f"the only slot of {who} is busy" if slots == 1 else f"all {slots:,} slots of {who} are busy"
        return (
            f"{it}, but {busy}{also}.",
            f"Wait, or start another worker: {START_WORKER}",
        )
    if before:
        return f"{it}, and {before}.", f"Wait, or start another worker: {START_WORKER}"
    return (
        f"{it}, and next in line for {who}.",
        f"Check again in a moment: holdfast explain {job.id}",
    )


def _slots(worker: WorkerRecord, job: JobRecord) -> int:
    return worker.limits.pool if job.task in worker.limits.pool_tasks else worker.concurrency


def _limit_reached(candidate: WorkerStatus, job: JobRecord) -> str | None:
    """Return why the worker cannot take another job: the limit of the queue, or no free slot; or None."""
    worker, claimed = candidate.record, candidate.claimed
    limit = worker.limits.queues.get(job.queue)
    if limit is not None and sum(count for queue, _, count in claimed if queue == job.queue) >= limit:
        return "queue"
    in_pool = job.task in worker.limits.pool_tasks
    used = sum(count for _, task, count in claimed if (task in worker.limits.pool_tasks) == in_pool)
    return "slots" if used >= _slots(worker, job) else None


def _count_ahead(store: Store, job: JobRecord, workers: Sequence[WorkerRecord]) -> int:
    """Count the jobs ahead of this one, for the worker that reaches it first. Like workers are counted once."""
    kinds: dict[tuple[tuple[str, ...] | None, tuple[str, ...]], None] = {}
    for worker in workers:
        in_pool = job.task in worker.limits.pool_tasks
        tasks = tuple(task for task in worker.tasks if (task in worker.limits.pool_tasks) == in_pool)
        kinds[_queues_before(worker, job), tasks] = None
    return min(store.workflows.count_ahead(job, *kind, MAX_AHEAD + 1) for kind in list(kinds)[:MAX_KINDS])


def _queues_before(worker: WorkerRecord, job: JobRecord) -> tuple[str, ...] | None:
    """Return the queues that the worker serves before the job's own, and that one; None for all."""
    if worker.queues is None:
        return None
    return (job.queue,) if worker.limits.weighted else worker.queues[: worker.queues.index(job.queue) + 1]


def _ahead(count: int, noun: str) -> str:
    if count > MAX_AHEAD:
        return f"more than {MAX_AHEAD:,} {noun}s are"
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"


UNSUCCESSFUL = ("failed", "cancelled")
MAX_INDIRECT = 3
_FINISHED = {  # singular and plural
    "succeeded": ("has succeeded", "have succeeded"),
    "failed": ("has failed", "have failed"),
    "cancelled": ("was cancelled", "were cancelled"),
}


def is_blocked(one: Blocker) -> bool:
    """Whether it waits for other jobs, and not for a settlement from outside."""
    return one.status == "blocked" and not one.external


def _phrase(status: str) -> str:
    return _FINISHED[status][0] if status in _FINISHED else f"is {status}"


def waits_for(blockers: Blockers, holding: Sequence[Blocker], behind: Sequence[Blocker]) -> str:
    """Describe the blockers. holding: those to name. behind: indirect blockers."""
    named = _named(holding)
    if blockers.holding > len(holding):
        named.append(f"{blockers.holding - len(holding):,} more")
    if blockers.holding == 1:
        still = "still waits" if blockers.total > 1 else "waits"
        sentence = f"{still} for {named[0]}"
    else:
        of_all = "" if blockers.holding == blockers.total else f" of {blockers.total:,}"
        sentence = f"waits for {blockers.holding:,}{of_all} jobs: {listed(named, ';')}"
    if not behind:
        return sentence
    others = ["others"] if len(behind) > MAX_INDIRECT else []
    return f"{sentence}; indirectly it waits for {listed([*_named(behind[:MAX_INDIRECT]), *others], ';')}"


def _named(blockers: Sequence[Blocker]) -> list[str]:
    """Name each blocker by its last job and its state; those in the same state together."""
    alike: dict[tuple[str | None, str, str, str], list[int]] = {}
    named: list[str] = []
    for one in blockers:
        if one.id is None or one.status is None:
            named.append(f"chain {one.chain_id}, which was deleted")
        else:
            of_chain = "" if one.id == one.chain_id else f" of chain {one.chain_id}"
            alike.setdefault((one.task, *_standing(one), of_chain), []).append(one.id)
    for (task, is_so, are_so, of_chain), ids in alike.items():
        if len(ids) == 1:
            named.append(f"{numbered(ids[0], task)}{of_chain}, which {is_so}")
        else:
            named.append(f"jobs {listed([str(id) for id in ids])} ({short(task or '')}), which {are_so}")
    return named


def _standing(one: Blocker) -> tuple[str, str]:
    """Return the state in words, singular and plural."""
    if one.status == "blocked" and one.external:
        until = "" if one.timeout_at is None else f" until {moment(one.timeout_at)}"
        return f"waits to be settled{until}", f"wait to be settled{until}"
    if one.status == "blocked":
        return "is blocked itself", "are blocked themselves"
    is_so, are_so = _FINISHED.get(one.status or "", (f"is {one.status}", f"are {one.status}"))
    code = f" with {error(one.error_code, None)}" if one.status == "failed" else ""
    return is_so + code, are_so + code


def release(job_id: int, holding: Sequence[Blocker], behind: Sequence[Blocker]) -> str:
    """Return advice about the most urgent blocker."""
    known = [*holding, *behind]
    first = next((one for one in known if not is_blocked(one)), known[0])
    if first.id is None:
        return f"End it by hand: holdfast cancel {job_id}, or holdfast complete {job_id}"
    ended = [str(one.id) for one in known if one.status in UNSUCCESSFUL]
    if ended:
        if len(ended) == 1:
            return f"It continues when job {ended[0]} succeeds. Retry that: holdfast retry {ended[0]}"
        return f"It continues when jobs {listed(ended)} succeed. Retry them: holdfast retry {' '.join(ended)}"
    if first.external and first.status == "blocked":
        return f"Settle job {first.id}: holdfast complete {first.id}, or holdfast fail {first.id} CODE"
    return f"Wait, or find out about job {first.id}: holdfast explain {first.id}"


MAX_NAMED = 5

# Codes with which a sweep fails a job whose worker is gone.
HIDDEN_MESSAGE = "(hidden)"
_BY_SWEEP = ("INTERNAL:WORKER_LOST", "TIMEOUT:LEASE", "TIMEOUT:VISIBILITY")


class Explanation(Struct, frozen=True):
    """Why a job is in its state. `str()` of it is the reason and the advice."""

    job_id: int
    status: Status
    reason: str
    """One sentence."""
    advice: str
    """What would change it, with the command or the call to use."""

    def __str__(self) -> str:
        return f"{self.reason} {self.advice}"


def _without_messages(details: JobDetails) -> JobDetails:
    """Hide what was written by tasks and operators. Holdfast's own messages name jobs and times only."""
    job = details.record
    is_own = job.error_code == "DEPENDENCY:BLOCKER" or job.error_code in _BY_SWEEP
    detail = job.error_detail if is_own or not job.error_detail else HIDDEN_MESSAGE
    record = replace(job, error_detail=detail, progress_text=None)
    return replace(details, record=record, reason=HIDDEN_MESSAGE if details.reason else None)


def explain(app: App, id: int, hide_messages: bool = False) -> Explanation:
    details = app.store.workflows.job_details(validate.job_id(id))
    if details is None:
        raise JobNotFound(f"there is no job {id}: it never existed, or it was deleted")
    if hide_messages:
        details = _without_messages(details)
    job = _JobExplainer(app.store, details, app.clock.now())
    status = details.record.status
    by_status: dict[str, Callable[[], ReasonAndAdvice]] = {
        "blocked": job.blocked,
        "scheduled": job.scheduled,
        "ready": job.ready,
        "running": job.running,
        "succeeded": job.succeeded,
        "failed": job.failed,
        "cancelled": job.cancelled,
    }
    reason, advice = by_status.get(status, job.unknown)()
    return Explanation(id, status, f"{reason}{job.expiry()}", advice)


class _JobExplainer:
    """Explains one job. It has a method for each state."""

    def __init__(self, store: Store, details: JobDetails, now: int) -> None:
        self._store, self._details, self._now = store, details, now
        self._job = job = details.record
        self._it = subject(job.id, job.task)
        self._attempt = f"attempt {job.attempt} of {job.max_attempts}"
        self._actor = short(details.actor or "an unknown actor")

    def unknown(self) -> ReasonAndAdvice:
        """Explain a status that no constraint would have allowed."""
        reason = f"{self._it} has the status {short(self._job.status)!r}, which does not exist: its row is damaged."
        return reason, "run 'holdfast doctor', which names damaged rows"

    # --- not started ---

    def scheduled(self) -> ReasonAndAdvice:
        job, transition = self._job, self._details.transition
        if job.run_at <= self._now:
            return why_not_claimed(self._store, self._details, f"has been due for {whole(self._now - job.run_at)}")
        when = ahead(job.run_at, self._now)
        if job.unfit_since is not None:
            return f"{self._it} is tried again at {when}: {_unfit(self._details)}.", NEWER_CODE.format(id=job.id)
        if transition == "retry_scheduled":
            failed = f"{self._attempt} failed with {error(job.error_code, job.error_detail)}"
            reason = f"{self._it} will be retried at {when}, since {failed}."
        elif transition == "snoozed":
            reason = f"{self._it} is snoozed until {when}, as its task requested."
        elif transition == "released":
            reason = f"{self._it} was released after {self._attempt}, and is due at {when}."
        elif transition == "requeued":
            reason = f"{self._it} was retried by {self._actor} with a delay, and is due at {when}."
        else:
            reason = f"{self._it} is scheduled, and due at {when}."
        return reason, f"Run it now: holdfast run-now {job.id}"

    def expiry(self) -> str:
        """Return a sentence about a waiting job that expires."""
        job = self._job
        if job.expires_at is None or job.external or job.status not in ("blocked", "scheduled", "ready"):
            return ""
        if job.expires_at <= self._now:
            return f" It expired at {moment(job.expires_at)}, and the next worker cancels it."
        return f" It expires at {ahead(job.expires_at, self._now)}."

    def ready(self) -> ReasonAndAdvice:
        return why_not_claimed(self._store, self._details, "is ready")

    def blocked(self) -> ReasonAndAdvice:
        job = self._job
        if job.external:
            return self._external()
        blockers = self._store.workflows.blockers(job.id, MAX_NAMED, urgent_first=True)
        holding = [one for one in blockers.found if one.holds]
        if not holding and not self._details.unresolved:
            return (
                f"{self._it} is blocked, but has no blockers: its row was changed by hand.",
                f"Release it: holdfast cancel {job.id}, then holdfast retry {job.id}",
            )
        has_policy = job.on_blocker_failure is not None and any(one.status in UNSUCCESSFUL for one in holding)
        if (has_policy and self._details.unresolved) or all(one.status == "succeeded" for one in holding):
            return self._about_to_change("is blocked, although its blockers have finished", "update it")
        is_deep = any(map(is_blocked, holding))
        behind = self._details.behind[: MAX_INDIRECT + 1] if is_deep else []
        reason = f"{self._it} is blocked: it {waits_for(blockers, holding, behind)}."
        return reason, release(job.id, holding, behind)

    def _external(self) -> ReasonAndAdvice:
        job = self._job
        if job.expires_at is not None and job.expires_at <= self._now:
            overdue = f"is external, and was not settled by {moment(job.expires_at)}"
            return self._about_to_change(overdue, "fail it")
        until = "" if job.expires_at is None else f" until {ahead(job.expires_at, self._now)}, and fails then"
        return (
            f"{self._it} is external: it waits to be settled{until}.",
            f"Settle it: holdfast complete {job.id}, or holdfast fail {job.id} CODE",
        )

    def _about_to_change(self, fact: str, action: str) -> ReasonAndAdvice:
        """Explain a state that the next sweep of a worker changes."""
        if any(one.is_present for one in self._store.workers.list()):
            return (
                f"{self._it} {fact}: a worker will {action} shortly.",
                f"Check again in a moment: holdfast explain {self._job.id}",
            )
        return f"{self._it} {fact}, and no worker is running to {action}.", f"Start one: {START_WORKER}"

    # --- running ---

    def running(self) -> ReasonAndAdvice:
        job = self._job
        if job.task is None:
            return self._held(
                f"is in flight: {self._attempt} is held by {short(job.worker or 'an unknown consumer')}"
            )
        found = next((one for one in self._store.workers.list() if one.record.id == job.worker), None)
        if found is None:  # claimed by a program that is not a worker
            return self._held(f"is running: {self._attempt} is held by {short(job.worker or 'an unknown program')}")
        worker = found.record
        place = f"process {worker.pid} on {short(worker.host)}"
        if not found.is_present:
            fact = f"was running, {self._attempt}, in a worker that died ({place})"
            return self._about_to_change(fact, "recover it")
        if found.state == "suspended":
            return (
                f"{self._it} is running, but its worker is suspended by a signal ({place}).",
                f"Resume it: kill -CONT {worker.pid}",
            )
        return (
            f"{self._it} is running: {self._attempt}, {self._so_far()}, in worker {worker.id} ({place}).",
            f"Wait until it finishes, or cancel it: holdfast cancel {job.id}",
        )

    def _so_far(self) -> str:
        job = self._job
        if job.started_at is None:
            return "about to start"
        limit = "" if job.timeout is None else f" of at most {span(job.timeout / SECOND)}"
        share = "" if job.progress is None else f"{job.progress:.0%}"
        progress = " ".join(part for part in (share, short(job.progress_text or "")) if part)
        return f"for {whole(self._now - job.started_at)}{limit}" + (f", progress {progress}" if progress else "")

    def _held(self, fact: str) -> ReasonAndAdvice:
        job, left = self._job, self._details.lease_left or 0
        if left <= 0:
            again = f"Receive it again: app.queue({job.queue!r}).receive()"
            return (
                f"{self._it} {fact}, but its lease has expired.",
                again if job.task is None else f"Start a worker, which recovers it: {START_WORKER}",
            )
        settled = "acknowledged" if job.task is None else "settled"
        return (
            f"{self._it} {fact}, and its lease ends in {whole(left)}.",
            f"Wait until it is {settled} or its lease ends, or cancel it: holdfast cancel {job.id}",
        )

    # --- finished ---

    def succeeded(self) -> ReasonAndAdvice:
        job = self._job
        when = "" if job.finished_at is None else f" at {moment(job.finished_at)}"
        if self._details.transition == "completed":
            reason = f"{self._it} was completed by {self._actor}{when}"
        elif job.task is None:
            reason = f"{self._it} was acknowledged{when}, in {self._attempt}"
        else:
            reason = f"{self._it} succeeded{when}, in {self._attempt}"
        found = self._store.workflows.chain(job.chain, last_only=True) if job.continued else []
        if not found:
            return f"{reason}.", "Nothing needs to be done."
        (last,) = found
        reason = f"{reason}; its chain continues with {numbered(last.id, last.task)}, which {_phrase(last.status)}."
        if last.status == "succeeded":
            return reason, "Nothing needs to be done."
        return reason, f"Find out about that: holdfast explain {last.id}"

    def failed(self) -> ReasonAndAdvice:
        job, it, others = self._job, self._it, self._others()
        if job.error_code == "DEPENDENCY:BLOCKER" and job.on_blocker_failure == "fail":
            return f"{it} failed, since {error(None, job.error_detail)}{others}.", self._retry_with_blockers()
        if job.error_code == "TIMEOUT:EXTERNAL" and job.external:
            by = "" if job.expires_at is None else f" by {moment(job.expires_at)}"
            reason = f"{it} failed with TIMEOUT:EXTERNAL: it was not settled{by}{others}."
            return reason, f"Let it wait again, without a deadline: holdfast retry {job.id}"
        why = error(job.error_code, job.error_detail)
        if self._details.actor != job.worker and job.error_code not in _BY_SWEEP:
            reason = f"{it} was failed by {self._actor} with {why}{others}."
        elif job.attempt >= job.max_attempts:
            spent = "its only attempt" if job.attempt == 1 else f"the last of its {job.attempt} attempts"
            reason = f"{it} failed: {spent} ended with {why}{others}."
        else:
            reason = f"{it} failed in {self._attempt}, without a retry, with {why}{others}."
        again = "let it wait again" if job.external else "run it again"
        return reason, f"Fix the cause, then {again}: holdfast retry {job.id}"

    def cancelled(self) -> ReasonAndAdvice:
        job, others = self._job, self._others()
        said = error(None, job.error_detail) if job.error_detail else ""
        if job.on_blocker_failure == "cancel":
            found = self._store.workflows.blockers(job.id, MAX_NAMED, urgent_first=True).found
            if any(one.outcome in UNSUCCESSFUL for one in found):
                return f"{self._it} was cancelled, since {said}{others}.", self._retry_with_blockers()
        if job.error_code == "TIMEOUT:EXPIRED":
            return f"{self._it} was cancelled: {said}{others}.", f"Run it anyway: holdfast retry {job.id}"
        by_itself = job.worker is not None and self._details.actor == job.worker
        who = "its own task" if by_itself else self._actor
        reason = f"{self._it} was cancelled by {who}{f': {said}' if said else ''}{others}."
        return reason, f"Run it anyway: holdfast retry {job.id}"

    def _retry_with_blockers(self) -> str:
        """A retried job waits for its blockers again, so these must be retried, too."""
        found = self._store.workflows.blockers(self._job.id, MAX_NAMED, urgent_first=True).found
        again = [str(one.id) for one in found if one.id is not None and one.status in UNSUCCESSFUL]
        before = ", with its blockers" if again else ""
        return f"Run it again{before}: holdfast retry {' '.join([*again, str(self._job.id)])}"

    def _others(self) -> str:
        """Count the jobs that wait for this one."""
        count = self._store.workflows.waiting_for(self._job.chain, 1).total
        return f"; {plural(count, 'job')} {'waits' if count == 1 else 'wait'} for it" if count else ""
