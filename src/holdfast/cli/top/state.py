"""The state of `holdfast top` (selection, filter, open question), and how keys change it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..output import clean

if TYPE_CHECKING:
    from .data import FailureLine, QueueLine, TopData


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
        return PendingAction("retry all", question, queue=info.queue, task=info.task, error_code=info.error_code)
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
