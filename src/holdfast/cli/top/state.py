"""The state of `holdfast top`: its data, the selection, filter and open question, and how keys change them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...clock import SECOND, as_microseconds
from ...model.job import Criteria
from ..output import clean

if TYPE_CHECKING:
    from ...model.job import JobRecord
    from ...model.stats import Count, FailureInfo, ThroughputPoint, WorkerHealth
    from ...supervisor import Holdfast


SPARKLINE_MINUTES = 60
MAX_FAILURES = 200
MAX_RUNNING = 500
MAX_BATCHES = 1000
FINISHED = ("succeeded", "failed", "cancelled")
FAILURE_WINDOW = timedelta(days=1)


class QueueLine(NamedTuple):
    name: str
    counts: dict[str, int]
    per_minute: float
    oldest: float | None  # age of the oldest ready job, in seconds
    paused: bool


class FailureLine(NamedTuple):
    info: FailureInfo
    status: str | None  # of the last job with this failure; None if it was deleted


class TopData(NamedTuple):
    at: datetime
    counts: dict[str, int]
    done: list[int]  # finished jobs per minute, oldest first
    failed: list[int]  # failed attempts per minute, oldest first
    queues: list[QueueLine]
    running: list[JobRecord]
    failures: list[FailureLine]
    workers: list[WorkerHealth]
    batches: int = 0  # not done

    @property
    def done_per_minute(self) -> float:
        return per_minute(self.done, self.at)

    @property
    def failed_per_minute(self) -> float:
        return per_minute(self.failed, self.at)


def per_minute(minutes: list[int], now: datetime) -> float:
    """Estimate the rate of the last 60 seconds, assuming that the previous minute was even."""
    share = (now.second + now.microsecond / 1_000_000) / 60
    return minutes[-1] + minutes[-2] * (1 - share)


def matches(pattern: str, queue: str, task: str | None) -> bool:
    """Return whether the name of the queue or of the task contains the text."""
    text = pattern.casefold()
    return text in queue.casefold() or text in (task or "message").casefold()


def read_data(app: Holdfast, pattern: str = "") -> TopData:
    """Read what the screen shows. pattern: only queues and tasks whose name contains this."""
    now = datetime.now(UTC)
    items = [one for one in app.store.statistics.counts().items if matches(pattern, one.queue, one.task)]
    points = [
        one
        for one in app.observe.throughput(timedelta(minutes=SPARKLINE_MINUTES - 1))
        if matches(pattern, one.queue, one.task)
    ]
    return TopData(
        at=now,
        counts=_sum(items),
        done=_by_minute(points, now, *FINISHED),
        failed=_by_minute(points, now, "failed", "retried"),
        queues=_queues(app, pattern, items, points, now),
        running=_running(app, pattern),
        failures=_failures(app, pattern),
        workers=[one for one in app.observe.workers() if one.ended_at is None],
        batches=_count_unfinished_batches(app),
    )


def _count_unfinished_batches(app: Holdfast) -> int:
    batches = app.store.workflows.batches
    return len(batches("open", MAX_BATCHES, counted=False)) + len(batches("running", MAX_BATCHES, counted=False))


def _sum(items: Iterable[Count]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in items:
        found[one.status] = found.get(one.status, 0) + (one.count or 0)
    return found


def _by_minute(points: Iterable[ThroughputPoint], now: datetime, *names: str) -> list[int]:
    found = [0] * SPARKLINE_MINUTES
    this_minute = now.replace(second=0, microsecond=0)
    for one in points:
        ago = round((this_minute - one.at).total_seconds() / 60)
        if 0 <= ago < SPARKLINE_MINUTES:
            found[SPARKLINE_MINUTES - 1 - ago] += sum(getattr(one, name) for name in names)
    return found


def _queues(
    app: Holdfast, pattern: str, items: list[Count], points: list[ThroughputPoint], now: datetime
) -> list[QueueLine]:
    """Return the queues that have a job in any state, and those that are paused."""
    is_paused = app.store.statistics.counts().paused
    paused = {name for name in is_paused if is_paused[name] and matches(pattern, name, "")}
    ready = sorted(app.store.statistics.oldest(-1, ("ready",)), key=lambda one: -one.since)
    oldest = {one.queue: one.since for one in ready if matches(pattern, one.queue, one.task)}
    found = []
    for name in sorted({one.queue for one in items} | paused):
        counts = _sum(one for one in items if one.queue == name)
        done = _by_minute((one for one in points if one.queue == name), now, *FINISHED)
        since = oldest.get(name)
        waiting = None if since is None else max(0.0, (as_microseconds(now) - since) / SECOND)
        found.append(QueueLine(name, counts, per_minute(done, now), waiting, name in paused))
    return found


def _running(app: Holdfast, pattern: str) -> list[JobRecord]:
    """Return the running jobs, longest running first, then those that are claimed and not started."""
    ids = tuple(one.id for one in app.store.statistics.oldest(MAX_RUNNING, ("running",)))
    found = app.store.jobs.list(Criteria(ids=ids, status=("running",)), MAX_RUNNING).records if ids else []
    found = [job for job in found if matches(pattern, job.queue, job.task)]
    return sorted(found, key=lambda job: (job.started_at is None, job.started_at or 0, job.id))


def _failures(app: Holdfast, pattern: str) -> list[FailureLine]:
    found = app.observe.failures(FAILURE_WINDOW, MAX_FAILURES, with_tracebacks=False)
    found = [one for one in found if matches(pattern, one.queue, one.task)]
    ids = tuple({one.last_job_id for one in found})
    records = app.store.jobs.list(Criteria(ids=ids), len(ids)).records if ids else []
    statuses: dict[int, str] = {record.id: record.status for record in records}
    return [FailureLine(one, statuses.get(one.last_job_id)) for one in found]


PAGE = 10
MAX_FILTER = 100
MOVES = {
    "up": -1, "k": -1, "down": 1, "j": 1, "page-up": -PAGE, "page-down": PAGE, "home": -(10**9), "g": -(10**9),
    "end": 10**9, "G": 10**9,
}  # fmt: skip
UNFINISHED = ("blocked", "scheduled", "ready", "running")
DECLINED = "Nothing was changed."
FAILURE_GONE = "The failure is no longer listed."
Kind = Literal["queue", "job", "failure"]
Mode = Literal["watch", "filter", "ask", "help", "detail"]


class Item(NamedTuple):
    """A row that can be selected. kind and name stay the same when the data is read again."""

    kind: Kind
    name: Any


class PendingAction(NamedTuple):
    """An action that waits for confirmation."""

    verb: Literal["retry", "retry all", "cancel", "pause", "resume"]
    question: str
    job_id: int = 0
    queue: str = ""
    task: str | None = None
    error_code: str = ""
    fingerprint: str | None = None


def failure_name(one: FailureLine) -> tuple[str, str, str | None, str | None]:
    return one.info.error_code, one.info.queue, one.info.task, one.info.fingerprint


def items(data: TopData) -> list[Item]:
    """Return all rows that can be selected, in screen order."""
    return [
        *(Item("queue", one.name) for one in data.queues),
        *(Item("job", one.id) for one in data.running),
        *(Item("failure", failure_name(one)) for one in data.failures),
    ]


class TopState:
    def __init__(self, pattern: str = "") -> None:
        self.pattern = pattern
        self.mode: Mode = "watch"
        self.typed = ""
        self.message = ""
        self.question: PendingAction | None = None
        self.confirmed: PendingAction | None = None
        """An action to run now; the main loop resets it."""
        self.detail: Item | None = None
        """The row that is shown in full."""
        self.scroll = 0
        self.quit = False
        self.selected: Item | None = None
        self._index = 0

    def follow(self, data: TopData) -> None:
        """Keep the selected row selected; if it is gone, select the row in its place."""
        found = items(data)
        if self.selected in found:
            self._index = found.index(self.selected)
        elif found:
            self._index = min(self._index, len(found) - 1)
            self.selected = found[self._index]
        else:
            self.selected = None

    def press(self, key: str, data: TopData) -> None:
        if self.mode == "filter":
            self._press_in_filter(key)
        elif self.mode == "ask":
            self._press_in_question(key)
        elif self.mode == "watch":
            self.message = ""
            self._press_on_main(key, data)
        else:
            self._press_on_page(key)

    # --- modes with their own keys ---

    def _press_in_filter(self, key: str) -> None:
        if key == "enter":
            self.pattern, self.mode = self.typed.strip(), "watch"
        elif key == "escape":
            self.mode = "watch"
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "clear":
            self.typed = ""
        elif len(key) == 1 or key == "space":
            self.typed = (self.typed + (" " if key == "space" else key))[:MAX_FILTER]

    def _press_in_question(self, key: str) -> None:
        self.confirmed, self.message = (self.question, "") if key in ("y", "Y") else (None, DECLINED)
        self.question, self.mode = None, "watch"

    def _press_on_page(self, key: str) -> None:
        """Scroll a page of text; any other key closes it."""
        if key in MOVES:
            self.scroll = max(0, self.scroll + MOVES[key])
            return
        self.mode, self.detail, self.scroll = "watch", None, 0
        self.quit = key == "q"

    # --- the main screen ---

    def _press_on_main(self, key: str, data: TopData) -> None:
        if key in ("q", "end-of-input"):
            self.quit = True
        elif key in MOVES:
            self._move(MOVES[key], data)
        elif key in ("tab", "back-tab"):
            self._next_section(data, -1 if key == "back-tab" else 1)
        elif key == "/":
            self.mode, self.typed = "filter", self.pattern
        elif key == "escape":
            self.pattern = ""
        elif key in ("?", "h"):
            self.mode = "help"
        elif key == "enter":
            self._show_detail()
        elif key in ("r", "R", "c", "p"):
            self._ask(key, data)

    def _move(self, by: int, data: TopData) -> None:
        found = items(data)
        if found:
            self._index = min(max(0, self._index + by), len(found) - 1)
            self.selected = found[self._index]

    def _next_section(self, data: TopData, step: int) -> None:
        found = items(data)
        kinds = list(dict.fromkeys(one.kind for one in found))
        if self.selected is not None and len(kinds) > 1:
            kind = kinds[(kinds.index(self.selected.kind) + step) % len(kinds)]
            self._index = [one.kind for one in found].index(kind)
            self.selected = found[self._index]

    def _show_detail(self) -> None:
        if self.selected is None or self.selected.kind == "queue":
            self.message = "Select a job or a failure to show its details."
        else:
            self.mode, self.detail, self.scroll = "detail", self.selected, 0

    def _ask(self, key: str, data: TopData) -> None:
        action = _action(key, self.selected, data)
        if isinstance(action, PendingAction):
            self.question, self.mode = action, "ask"
        else:
            self.message = action


def _action(key: str, selected: Item | None, data: TopData) -> PendingAction | str:
    """Return the action of the key on the selected row, or a message why there is none."""
    if selected is None:
        return "Nothing is selected."
    if key == "p":
        return _pause_action(selected, data)
    if selected.kind == "queue":
        return "Select a job to cancel it." if key == "c" else "Select a failure to retry it."
    if selected.kind == "job":
        job = next((job for job in data.running if job.id == selected.name), None)
        if job is None or key != "c":
            return f"Job {selected.name} is running: nothing to retry."
        return PendingAction("cancel", f"Cancel job {job.id} ({_task_name(job.task)}), which is running?", job.id)
    failure = next((one for one in data.failures if failure_name(one) == selected.name), None)
    return FAILURE_GONE if failure is None else _failure_action(key, failure)


def _failure_action(key: str, failure: FailureLine) -> PendingAction | str:
    info, status = failure
    if key == "R":
        where = f"{_task_name(info.task)} on {clean(info.queue)}"
        question = f" of {where} with {clean(info.error_code)}?"  # the main loop adds the count in front
        return PendingAction("retry all", question, 0, info.queue, info.task, info.error_code, info.fingerprint)
    job = f"job {info.last_job_id} ({_task_name(info.task)})"
    if status is None:
        return f"J{job[1:]} was deleted."
    if key == "c":
        if status not in UNFINISHED:
            return f"J{job[1:]} is already {status}: nothing to cancel."
        return PendingAction("cancel", f"Cancel {job}, which is {status}?", info.last_job_id)
    if status not in ("failed", "cancelled"):
        return f"J{job[1:]} is {status} now: nothing to retry."
    return PendingAction("retry", f"Retry {job}, which is {status}?", info.last_job_id)


def _pause_action(selected: Item, data: TopData) -> PendingAction | str:
    name = _queue_of(selected, data)
    queue: QueueLine | None = next((one for one in data.queues if one.name == name), None)
    if queue is None:
        return "The queue no longer exists."
    if queue.paused:
        return PendingAction("resume", f"Resume the queue {clean(queue.name)}?", queue=queue.name)
    return PendingAction("pause", f"Pause the queue {clean(queue.name)}? Running jobs continue.", queue=queue.name)


def _queue_of(selected: Item, data: TopData) -> str | None:
    if selected.kind == "queue":
        return str(selected.name)
    if selected.kind == "failure":
        return str(selected.name[1])
    return next((job.queue for job in data.running if job.id == selected.name), None)


def _task_name(task: str | None) -> str:
    return "message" if task is None else clean(task)
