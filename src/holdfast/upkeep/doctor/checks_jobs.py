"""Jobs that do not move on: held by nobody, blocked by nothing, waiting for a worker that does not come."""

from __future__ import annotations

from collections.abc import Iterator

from ...clock import SECOND
from ...model.diagnosis import Examination, Held, StuckReady
from ...model.worker import WorkerStatus
from ...text import listed, plural, short, span, word
from .findings import Finding, agree, command, count_of, ids_of

START = "holdfast worker module:app"
LONG_PAUSE = 86_400 * SECOND
SILENCE = 3  # times the lease
MOST_NAMED = 5


def about_jobs(found: Examination) -> Iterator[Finding]:
    yield from _running(found)
    yield from _blocked(found)
    yield from _workers(found)
    yield from _unserved(found)
    yield from _late(found)
    yield from _pauses(found)


def _live(found: Examination) -> list[WorkerStatus]:
    return [one for one in found.workers or () if one.presence in ("alive", "unknown")]


# --- running ---


def _running(found: Examination) -> Iterator[Finding]:
    if found.overdue is None or found.abandoned is None:
        return
    if found.overdue:
        some = found.overdue
        them = agree(some.count, "it", "them")
        what_next = (
            f"A worker is there and should have taken {them} back by now: see its log."
            if _live(found)
            else f"The next worker, or the next receive, takes {them} back."
        )
        yield Finding(
            "warning" if not _live(found) else "error",
            "STUCK_JOBS",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'is', 'are')} running past the lease, "
            f"and no worker that lives holds {them}. {what_next}",
            command(found, "doctor --repair"),
            {"jobs": some.count, "ids": some.ids},
        )
    if not found.overdue and not found.abandoned:
        yield Finding("ok", "STUCK_JOBS", "Every job that runs has a worker or a lease.")


# --- blocked ---


def _blocked(found: Examination) -> Iterator[Finding]:
    if found.endings:
        yield Finding(
            "note",
            "ENDINGS_LEFT",
            f"{plural(found.endings, 'job')} {agree(found.endings, 'has', 'have')} ended, and those who may wait for "
            f"{agree(found.endings, 'it', 'them')} were not told yet. A worker does that within a second; without "
            "one, what waits stays blocked.",
            command(found, "doctor --repair"),
            {"endings": found.endings},
        )
    if found.unheld is None or found.held is None:
        return
    released = [one for one in found.held if _should_be_released(one)]
    stuck = sorted({*(found.unheld.ids), *(one.id for one in released)})
    if stuck and not found.endings:
        count = found.unheld.count + len(released)
        yield Finding(
            "error",
            "STUCK_BLOCKED",
            f"{plural(count, 'job')} ({_ids(stuck)}) {agree(count, 'is', 'are')} blocked, though nothing "
            f"that {agree(count, 'it waits', 'they wait')} for is left: somebody has changed rows by hand, or an "
            "end was never noted. The repair releases those whose blockers have ended; end the others.",
            command(found, "doctor --repair" if released else f"cancel {stuck[0]}"),
            {"jobs": count, "ids": stuck},
        )
    rest = [one for one in found.held if not _should_be_released(one)]
    yield from _held(found, rest)
    if not stuck and not rest:
        yield Finding("ok", "BLOCKED_JOBS", "Every blocked job waits for something that can still happen.")


def _should_be_released(one: Held) -> bool:
    """Nothing holds it: all ended well, or it does not hold for those that did not."""
    return one.policy is not None or not (one.failed or one.gone)


def _held(found: Examination, held: list[Held]) -> Iterator[Finding]:
    gone = [one for one in held if one.gone]
    if gone:
        yield Finding(
            "warning",
            "BLOCKED_BY_DELETED",
            f"{plural(len(gone), 'job')} ({_ids([one.id for one in gone])}) {agree(len(gone), 'waits', 'wait')} "
            "for a job that was deleted, and would wait for ever: end what waits.",
            command(found, f"cancel {gone[0].id}"),
            {"ids": [one.id for one in gone]},
        )
    failed = [one for one in held if not one.gone]
    if failed:
        causes = list(dict.fromkeys(cause for one in failed for cause in one.retryable))
        yield Finding(
            "note",
            "BLOCKED_BY_FAILED",
            f"{plural(len(failed), 'job')} ({_ids([one.id for one in failed])}) "
            f"{agree(len(failed), 'waits', 'wait')} for {agree(len(causes), 'job', 'jobs')} {_ids(causes)}, "
            f"which failed or {agree(len(causes), 'was', 'were')} cancelled. "
            f"{agree(len(failed), 'It goes', 'They go')} on when {agree(len(causes), 'that has', 'those have')} "
            "succeeded.",
            command(found, f"retry {' '.join(map(str, causes[:MOST_NAMED]))}"),
            {"ids": [one.id for one in failed], "causes": causes},
        )


# --- workers ---


def _workers(found: Examination) -> Iterator[Finding]:
    if found.workers is None:
        return
    dead = [one for one in found.workers if one.presence == "dead"]
    stopped = [one for one in found.workers if one.presence == "stopped"]
    silent = [one for one in _live(found) if found.now - one.record.heartbeat_at > SILENCE * one.record.lease]
    if dead:
        held = found.abandoned
        jobs = f", and still {agree(len(dead), 'holds', 'hold')} {count_of(held, 'job')}" if held else ""
        yield Finding(
            "warning",
            "DEAD_WORKERS",
            f"{_named(dead)} {agree(len(dead), 'is', 'are')} dead{jobs}. A worker that lives takes such jobs "
            "back at once; none does.",
            command(found, "doctor --repair"),
            {"workers": [one.record.id for one in dead], "jobs": held.count if held else 0},
        )
    if stopped:
        yield Finding(
            "warning",
            "STOPPED_WORKERS",
            f"{_named(stopped)} {agree(len(stopped), 'was', 'were')} stopped by a signal and "
            f"{agree(len(stopped), 'does', 'do')} nothing until continued.",
            f"kill -CONT {' '.join(str(one.record.pid) for one in stopped)}",
            {"workers": [one.record.id for one in stopped]},
        )
    if silent:
        longest = max(found.now - one.record.heartbeat_at for one in silent) / SECOND
        yield Finding(
            "warning",
            "SILENT_WORKERS",
            f"{_named(silent)} {agree(len(silent), 'has', 'have')} not been heard of for {span(longest)}. A "
            "handler may hog the interpreter, the process may hang, or it is on another machine, which SQLite does "
            "not allow.",
            f"ps -fp {','.join(str(one.record.pid) for one in silent)}",
            {"workers": [one.record.id for one in silent]},
        )
    if not dead and not stopped and not silent:
        alive = len(_live(found))
        text = f"{plural(alive, 'worker')} {agree(alive, 'lives', 'live')}." if alive else "No worker is running."
        yield Finding("ok", "WORKERS", text, None, {"alive": alive})


def _named(workers: list[WorkerStatus]) -> str:
    names = [f"process {one.record.pid} on {short(one.record.host)}" for one in workers[:MOST_NAMED]]
    more = [f"{len(workers) - MOST_NAMED} more"] if len(workers) > MOST_NAMED else []
    return f"{agree(len(workers), 'The worker', 'The workers')} {listed(names + more)}"


# --- ready, and nobody comes ---


def _unserved(found: Examination) -> Iterator[Finding]:
    if found.waiting is None or found.workers is None:
        return
    live = _live(found)
    if found.waiting and not live:
        yield Finding(
            "warning",
            "NO_WORKERS",
            f"{_jobs(found.waiting)} {'is' if _single(found.waiting) else 'are'} ready, and no worker is running.",
            START,
            {"waiting": _pairs(found.waiting)},
        )
        return
    unknown = [one for one in found.waiting if not any(one.task in worker.record.tasks for worker in live)]
    if unknown:
        yield Finding(
            "warning",
            "UNKNOWN_TASKS",
            f"{_jobs(unknown)} {'is' if _single(unknown) else 'are'} ready, of tasks that no running worker has: "
            f"{_tasks(unknown)}. They wait until one is started that has the code; was a task renamed or removed?",
            START,
            {"waiting": _pairs(unknown)},
        )
    unserved = [one for one in found.waiting if one not in unknown and not any(_serves(w, one) for w in live)]
    if unserved:
        queues = list(dict.fromkeys(one.queue for one in unserved))
        yield Finding(
            "warning",
            "UNSERVED_QUEUES",
            f"{_jobs(unserved)} {'is' if _single(unserved) else 'are'} ready in "
            f"{agree(len(queues), 'the queue', 'queues')} "
            f"{listed([short(name) for name in queues[:MOST_NAMED]])}, which no worker that has the task serves.",
            f"{START} --queues {','.join(word(name) for name in queues[:MOST_NAMED])}",
            {"waiting": _pairs(unserved)},
        )
    if not unknown and not unserved:
        yield Finding("ok", "READY_JOBS", "Every job that is ready has a worker that can take it.")


def _serves(worker: WorkerStatus, one: StuckReady) -> bool:
    queues = worker.record.queues
    return one.task in worker.record.tasks and (queues is None or one.queue in queues)


def _jobs(waiting: list[StuckReady]) -> str:
    return plural(sum(one.count for one in waiting), "job") + (" or more" if any(one.more for one in waiting) else "")


def _single(waiting: list[StuckReady]) -> bool:
    return sum(one.count for one in waiting) == 1


def _tasks(waiting: list[StuckReady]) -> str:
    names = list(dict.fromkeys(short(one.task or "") for one in waiting))
    return listed(names[:MOST_NAMED] + ([f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []))


def _pairs(waiting: list[StuckReady]) -> list[dict[str, object]]:
    return [{"queue": one.queue, "task": one.task, "count": one.count} for one in waiting]


# --- due, and paused ---


def _late(found: Examination) -> Iterator[Finding]:
    if found.late:
        some = found.late
        yield Finding(
            "warning",
            "LATE_JOBS",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'was', 'were')} due more than a minute "
            f"ago and {agree(some.count, 'is', 'are')} still scheduled: no worker looks.",
            START,
            {"jobs": some.count, "ids": some.ids},
        )


def _pauses(found: Examination) -> Iterator[Finding]:
    if found.pauses is None:
        return
    long = [one for one in found.pauses if one.ready and found.now - one.paused_at > LONG_PAUSE]
    for one in long:
        yield Finding(
            "warning",
            "PAUSED_QUEUE",
            f"The queue {short(one.queue)} has been paused for {span((found.now - one.paused_at) / SECOND)}, and "
            "jobs wait in it. Was it forgotten?",
            command(found, f"queues resume {word(one.queue)}"),
            {"queue": one.queue},
        )
    rest = [one for one in found.pauses if one not in long]
    if rest:
        yield Finding(
            "note",
            "PAUSED_QUEUE",
            f"{plural(len(rest), 'queue')} {agree(len(rest), 'is', 'are')} paused: "
            f"{listed([short(one.queue) for one in rest[:MOST_NAMED]])}.",
            command(found, f"queues resume {word(rest[0].queue)}"),
            {"queues": [one.queue for one in rest]},
        )


def _ids(ids: list[int]) -> str:
    named = [str(id) for id in ids[:MOST_NAMED]]
    return listed(named) if len(ids) <= MOST_NAMED else f"{', '.join(named)}, …"
