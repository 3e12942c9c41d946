"""Why a job is where it is, in one sentence, and what would change it: `app.jobs.explain(id)`."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from ..clock import SECOND
from ..errors import JobNotFound
from ..model import Status
from ..store.circumstances import Situation
from ..store.protocol import Store
from ..wording import ahead, error, moment, numbered, plural, short, span, subject, whole
from . import checks
from .blocking import BADLY, MOST_BEHIND, how_it_is, is_blocked, release, waits_for
from .readiness import START_ONE, Told, why_not_taken

if TYPE_CHECKING:
    from .app import App

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
    situation = app.store.workflows.situation(checks.job_id(id))
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
