"""Why a job is where it is, in one sentence, and what would change it: `app.jobs.explain(id)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from .. import validate
from ..clock import SECOND
from ..errors import JobNotFound
from ..model.job import JobRecord, Status
from ..model.situation import Blocker, Blockers, Situation
from ..model.worker import Attendance, WorkerRecord
from ..store.protocol import Store
from ..text import ahead, error, listed, moment, numbered, plural, short, span, subject, whole, word

if TYPE_CHECKING:
    from .app import App


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
    count = store.workflows.count_ahead(job, None, (), MOST_AHEAD + 1)
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
    return min(store.workflows.count_ahead(job, *kind, MOST_AHEAD + 1) for kind in list(kinds)[:MOST_KINDS])


def _queues_before(worker: WorkerRecord, job: JobRecord) -> tuple[str, ...] | None:
    """In the order in which it takes from them, up to the job's own."""
    if worker.queues is None:
        return None
    return (job.queue,) if worker.limits.weighted else worker.queues[: worker.queues.index(job.queue) + 1]


def _ahead(count: int, noun: str) -> str:
    if count > MOST_AHEAD:
        return f"more than {MOST_AHEAD:,} {noun}s are"
    return f"{plural(count, noun)} {'is' if count == 1 else 'are'}"


BADLY = ("failed", "cancelled")
MOST_BEHIND = 3
_ENDED = {  # of one, and of several
    "succeeded": ("has succeeded", "have succeeded"),
    "failed": ("has failed", "have failed"),
    "cancelled": ("was cancelled", "were cancelled"),
}


def is_blocked(one: Blocker) -> bool:
    """By others, and not by somebody outside."""
    return one.status == "blocked" and not one.external


def how_it_is(status: str) -> str:
    return _ENDED[status][0] if status in _ENDED else f"is {status}"


def waits_for(blockers: Blockers, holding: Sequence[Blocker], behind: Sequence[Blocker]) -> str:
    """holding: those to name. behind: what stands behind those that are blocked themselves."""
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
    others = ["others"] if len(behind) > MOST_BEHIND else []
    verb = "stands" if len(behind) == 1 else "stand"
    return f"{sentence}; behind that {verb} {listed([*_named(behind[:MOST_BEHIND]), *others], ';')}"


def _named(blockers: Sequence[Blocker]) -> list[str]:
    """Each by its last job and how that is; those that are alike together."""
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
    """How it is, in words about one, and about several."""
    if one.status == "blocked" and one.external:
        until = "" if one.timeout_at is None else f" until {moment(one.timeout_at)}"
        return f"waits for somebody to settle it{until}", f"wait for somebody to settle them{until}"
    if one.status == "blocked":
        return "is blocked itself", "are blocked themselves"
    is_so, are_so = _ENDED.get(one.status or "", (f"is {one.status}", f"are {one.status}"))
    code = f" with {error(one.error_code, None)}" if one.status == "failed" else ""
    return is_so + code, are_so + code


def release(job_id: int, holding: Sequence[Blocker], behind: Sequence[Blocker]) -> str:
    """What would let the job go on: about what is most in its way."""
    known = [*holding, *behind]
    first = next((one for one in known if not is_blocked(one)), known[0])
    if first.id is None:
        return f"It can only be ended: holdfast cancel {job_id}, or holdfast complete {job_id}"
    ended = [str(one.id) for one in known if one.status in BADLY]
    if ended:
        they = f"jobs {listed(ended)} have" if len(ended) > 1 else f"job {ended[0]} has"
        return f"It goes on when {they} succeeded: holdfast retry {' '.join(ended)}"
    if first.external and first.status == "blocked":
        return f"Settle job {first.id}: holdfast complete {first.id}, or holdfast fail {first.id} CODE"
    return f"Wait, or see how job {first.id} stands: holdfast explain {first.id}"


MOST_NAMED = 5

# With these Holdfast itself ends jobs, when nobody else can.
_BY_THE_CLOCK = ("INTERNAL:WORKER_LOST", "TIMEOUT:LEASE", "TIMEOUT:VISIBILITY")


class Explanation(Struct, frozen=True):
    """Why a job is where it is. As text, the reason and the advice."""

    job_id: int
    status: Status
    reason: str
    """One sentence."""
    advice: str
    """What would change it, with the command or the call for it."""

    def __str__(self) -> str:
        return f"{self.reason} {self.advice}"


def explain(app: App, id: int) -> Explanation:
    situation = app.store.workflows.situation(validate.job_id(id))
    if situation is None:
        raise JobNotFound(f"there is no job {id}: it never existed, or it was deleted")
    case = _Case(app.store, situation, app.clock.now())
    status = situation.record.status
    told: dict[str, Callable[[], Told]] = {
        "blocked": case.blocked,
        "scheduled": case.scheduled,
        "ready": case.ready,
        "running": case.running,
        "succeeded": case.succeeded,
        "failed": case.failed,
        "cancelled": case.cancelled,
    }
    return Explanation(id, status, *told[status]())


class _Case:
    """One job, and the words for it: a method for each state."""

    def __init__(self, store: Store, situation: Situation, now: int) -> None:
        self._store, self._situation, self._now = store, situation, now
        self._job = job = situation.record
        self._it = subject(job.id, job.task)
        self._attempt = f"attempt {job.attempt} of {job.max_attempts}"
        self._actor = short(situation.actor or "somebody")

    # --- it has not begun ---

    def scheduled(self) -> Told:
        job, transition = self._job, self._situation.transition
        if job.run_at <= self._now:
            return why_not_taken(self._store, self._situation, f"has been due for {whole(self._now - job.run_at)}")
        when = ahead(job.run_at, self._now)
        if transition == "retry_scheduled":
            failed = f"{self._attempt} failed with {error(job.error_code, job.error_detail)}"
            reason = f"{self._it} is to be tried again at {when}, since {failed}."
        elif transition == "snoozed":
            reason = f"{self._it} is snoozed until {when}: its task asked to come back then."
        elif transition == "released":
            reason = f"{self._it} was given back after {self._attempt}, and is not due before {when}."
        elif transition == "requeued":
            reason = f"{self._it} was retried by {self._actor} with a delay, and is not due before {when}."
        else:
            reason = f"{self._it} is scheduled, and not due before {when}."
        return reason, f"Make it ready at once: holdfast run-now {job.id}"

    def ready(self) -> Told:
        return why_not_taken(self._store, self._situation, "is ready")

    def blocked(self) -> Told:
        job = self._job
        if job.external:
            return self._external()
        blockers = self._store.workflows.blockers(job.id, MOST_NAMED, urgent_first=True)
        holding = [one for one in blockers.found if one.holds]
        if not holding and not self._situation.unresolved:
            return (
                f"{self._it} is blocked, and waits for nothing: somebody has changed its row by hand.",
                f"Let it begin: holdfast cancel {job.id}, then holdfast retry {job.id}",
            )
        minds = job.on_blocker_failure is not None and any(one.status in BADLY for one in holding)
        if (minds and self._situation.unresolved) or all(one.status == "succeeded" for one in holding):
            return self._about_to_change("is blocked, though what it waited for has ended", "see to it")
        is_deep = any(map(is_blocked, holding))
        behind = self._situation.behind[: MOST_BEHIND + 1] if is_deep else []
        reason = f"{self._it} is blocked: it {waits_for(blockers, holding, behind)}."
        return reason, release(job.id, holding, behind)

    def _external(self) -> Told:
        job = self._job
        if job.timeout_at is not None and job.timeout_at <= self._now:
            late = f"is external, and nobody had settled it by {moment(job.timeout_at)}"
            return self._about_to_change(late, "fail it")
        until = "" if job.timeout_at is None else f" until {ahead(job.timeout_at, self._now)}, when it fails"
        return (
            f"{self._it} is external: it waits for somebody to settle it{until}.",
            f"Settle it: holdfast complete {job.id}, or holdfast fail {job.id} CODE",
        )

    def _about_to_change(self, fact: str, deed: str) -> Told:
        """A worker would do it in passing."""
        if any(one.is_present for one in self._store.workers.list()):
            return (
                f"{self._it} {fact}: the next worker that looks will {deed}.",
                f"Wait a moment, and look again: holdfast explain {self._job.id}",
            )
        return f"{self._it} {fact}, and no worker is running to {deed}.", f"Start one: {START_ONE}"

    # --- it runs ---

    def running(self) -> Told:
        job = self._job
        if job.task is None:
            who = short(job.worker or "somebody")
            return self._held(f"is in flight: {who} holds it, with {self._attempt}")
        found = next((one for one in self._store.workers.list() if one.record.id == job.worker), None)
        if found is None:  # a program of its own has claimed it
            return self._held(f"is held by {short(job.worker or 'somebody')}, with {self._attempt}")
        worker = found.record
        place = f"process {worker.pid} on {short(worker.host)}"
        if not found.is_present:
            fact = f"was running, with {self._attempt}, in a worker that has died ({place})"
            return self._about_to_change(fact, "take it back")
        if found.presence == "stopped":
            return (
                f"{self._it} is running, but its worker was stopped by a signal ({place}).",
                f"Let it go on: kill -CONT {worker.pid}",
            )
        return (
            f"{self._it} is running: {self._attempt}, {self._so_far()}, in the worker {worker.id} ({place}).",
            f"Wait for its end, or stop it: holdfast cancel {job.id}",
        )

    def _so_far(self) -> str:
        job = self._job
        if job.started_at is None:
            return "about to begin"
        limit = "" if job.timeout is None else f" of at most {span(job.timeout / SECOND)}"
        share = "" if job.progress is None else f"{job.progress:.0%}"
        progress = " ".join(part for part in (share, short(job.progress_text or "")) if part)
        return f"for {whole(self._now - job.started_at)}{limit}" + (f", so far {progress}" if progress else "")

    def _held(self, fact: str) -> Told:
        job, left = self._job, self._situation.lease_left or 0
        if left <= 0:
            again = f"Receive again: app.queue({job.queue!r}).receive()"
            return (
                f"{self._it} {fact}, and the time to settle it is over: whoever looks next takes it back.",
                again if job.task is None else f"Start a worker: {START_ONE}",
            )
        settled = "acknowledged" if job.task is None else "settled"
        return (
            f"{self._it} {fact}, for {whole(left)} more.",
            f"Wait until it is {settled} or comes back, or stop it: holdfast cancel {job.id}",
        )

    # --- it has ended ---

    def succeeded(self) -> Told:
        job = self._job
        when = "" if job.finished_at is None else f" at {moment(job.finished_at)}"
        if self._situation.transition == "completed":
            reason = f"{self._it} was completed by {self._actor}{when}"
        elif job.task is None:
            reason = f"{self._it} was acknowledged{when}, with {self._attempt}"
        else:
            reason = f"{self._it} has succeeded{when}, with {self._attempt}"
        found = self._store.workflows.chain(job.chain, last_only=True) if job.continued else []
        if not found:
            return f"{reason}.", "It needs nothing more."
        (last,) = found
        reason = f"{reason}; its chain is at {numbered(last.id, last.task)}, which {how_it_is(last.status)}."
        if last.status == "succeeded":
            return reason, "It needs nothing more."
        return reason, f"See why that is so: holdfast explain {last.id}"

    def failed(self) -> Told:
        job, it, others = self._job, self._it, self._others()
        if job.error_code == "DEPENDENCY:BLOCKER" and job.on_blocker_failure == "fail":
            return f"{it} has failed, since {error(None, job.error_detail)}{others}.", self._retry_with_blockers()
        if job.error_code == "TIMEOUT:EXTERNAL" and job.external:
            by = "" if job.timeout_at is None else f" by {moment(job.timeout_at)}"
            reason = f"{it} has failed with TIMEOUT:EXTERNAL: nobody had settled it{by}{others}."
            return reason, f"Let it wait again, without a deadline: holdfast retry {job.id}"
        why = error(job.error_code, job.error_detail)
        if self._situation.actor != job.worker and job.error_code not in _BY_THE_CLOCK:
            reason = f"{it} was failed by {self._actor}, with {why}{others}."
        elif job.attempt >= job.max_attempts:
            spent = "its only attempt" if job.attempt == 1 else f"the last of its {job.attempt} attempts"
            reason = f"{it} has failed: {spent} ended with {why}{others}."
        else:
            reason = f"{it} has failed at {self._attempt}, and for good, with {why}{others}."
        again = "let it wait again" if job.external else "run it again"
        return reason, f"Mend the cause, then {again}: holdfast retry {job.id}"

    def cancelled(self) -> Told:
        job, others = self._job, self._others()
        said = error(None, job.error_detail) if job.error_detail else ""
        if job.on_blocker_failure == "cancel":
            found = self._store.workflows.blockers(job.id, MOST_NAMED, urgent_first=True).found
            if any(one.outcome in BADLY for one in found):
                return f"{self._it} was cancelled, since {said}{others}.", self._retry_with_blockers()
        by_itself = job.worker is not None and self._situation.actor == job.worker
        who = "its own task" if by_itself else self._actor
        reason = f"{self._it} was cancelled by {who}{f': {said}' if said else ''}{others}."
        return reason, f"Run it after all: holdfast retry {job.id}"

    def _retry_with_blockers(self) -> str:
        """It waits again when it is retried, so what it waits for must be retried, too."""
        found = self._store.workflows.blockers(self._job.id, MOST_NAMED, urgent_first=True).found
        again = [str(one.id) for one in found if one.id is not None and one.status in BADLY]
        before = ", and before it what it waits for" if again else ""
        return f"Run it again{before}: holdfast retry {' '.join([*again, str(self._job.id)])}"

    def _others(self) -> str:
        """Who is held up by it."""
        count = self._store.workflows.waiting_for(self._job.chain, 1).total
        return f"; {plural(count, 'job')} {'waits' if count == 1 else 'wait'} for it" if count else ""
