"""What `holdfast top` knows besides the data: what is selected, filtered, asked; and what a key does to it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..output import clean

if TYPE_CHECKING:
    from .data import FailureLine, Glance, QueueLine


PAGE = 10
LONGEST_FILTER = 100
MOVES = {
    "up": -1, "k": -1, "down": 1, "j": 1, "page-up": -PAGE, "page-down": PAGE, "home": -(10**9), "g": -(10**9),
    "end": 10**9, "G": 10**9,
}  # fmt: skip
UNFINISHED = ("blocked", "scheduled", "ready", "running")
NO = "Nothing was done."
Kind = Literal["queue", "job", "failure"]
Mode = Literal["watch", "filter", "ask", "help", "detail"]


class Item(NamedTuple):
    """A row that can be selected, by what stays the same when the screen is refreshed."""

    kind: Kind
    name: Any


class Deed(NamedTuple):
    """What is to be done if the answer is yes."""

    verb: Literal["retry", "retry all", "cancel", "pause", "resume"]
    question: str
    job_id: int = 0
    queue: str = ""
    task: str | None = None
    error_code: str = ""


def failure_name(one: FailureLine) -> tuple[str, str, str | None, str | None]:
    return one.info.error_code, one.info.queue, one.info.task, one.info.fingerprint


def items(glance: Glance) -> list[Item]:
    """All rows that can be selected, as they stand on the screen."""
    return [
        *(Item("queue", one.name) for one in glance.queues),
        *(Item("job", one.id) for one in glance.running),
        *(Item("failure", failure_name(one)) for one in glance.failures),
    ]


class Board:
    def __init__(self, wanted: str = "") -> None:
        self.wanted = wanted
        self.mode: Mode = "watch"
        self.typed = ""
        self.message = ""
        self.question: Deed | None = None
        self.agreed: Deed | None = None
        """What is to be done now; whoever does it takes it away."""
        self.detail: Item | None = None
        """What is to be shown in full."""
        self.scroll = 0
        self.quit = False
        self.selected: Item | None = None
        self._index = 0

    def follow(self, glance: Glance) -> None:
        """Keep the selection on its row; if that is gone, on the one that took its place."""
        found = items(glance)
        if self.selected in found:
            self._index = found.index(self.selected)
        elif found:
            self._index = min(self._index, len(found) - 1)
            self.selected = found[self._index]
        else:
            self.selected = None

    def press(self, key: str, glance: Glance) -> None:
        if self.mode == "filter":
            self._type(key)
        elif self.mode == "ask":
            self._answer(key)
        elif self.mode == "watch":
            self.message = ""
            self._watch(key, glance)
        else:
            self._leave(key)

    # --- a line is typed, or a question answered ---

    def _type(self, key: str) -> None:
        if key == "enter":
            self.wanted, self.mode = self.typed.strip(), "watch"
        elif key == "escape":
            self.mode = "watch"
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif key == "clear":
            self.typed = ""
        elif len(key) == 1 or key == "space":
            self.typed = (self.typed + (" " if key == "space" else key))[:LONGEST_FILTER]

    def _answer(self, key: str) -> None:
        self.agreed, self.message = (self.question, "") if key in ("y", "Y") else (None, NO)
        self.question, self.mode = None, "watch"

    def _leave(self, key: str) -> None:
        """A page with text: it scrolls, and any other key leaves it."""
        if key in MOVES:
            self.scroll = max(0, self.scroll + MOVES[key])
            return
        self.mode, self.detail, self.scroll = "watch", None, 0
        self.quit = key == "q"

    # --- otherwise ---

    def _watch(self, key: str, glance: Glance) -> None:
        if key in ("q", "end-of-input"):
            self.quit = True
        elif key in MOVES:
            self._move(MOVES[key], glance)
        elif key in ("tab", "back-tab"):
            self._next_section(glance, -1 if key == "back-tab" else 1)
        elif key == "/":
            self.mode, self.typed = "filter", self.wanted
        elif key == "escape":
            self.wanted = ""
        elif key in ("?", "h"):
            self.mode = "help"
        elif key == "enter":
            self._show()
        elif key in ("r", "R", "c", "p"):
            self._propose(key, glance)

    def _move(self, by: int, glance: Glance) -> None:
        found = items(glance)
        if found:
            self._index = min(max(0, self._index + by), len(found) - 1)
            self.selected = found[self._index]

    def _next_section(self, glance: Glance, step: int) -> None:
        found = items(glance)
        kinds = list(dict.fromkeys(one.kind for one in found))
        if self.selected is not None and len(kinds) > 1:
            kind = kinds[(kinds.index(self.selected.kind) + step) % len(kinds)]
            self._index = [one.kind for one in found].index(kind)
            self.selected = found[self._index]

    def _show(self) -> None:
        if self.selected is None or self.selected.kind == "queue":
            self.message = "Select a job or a failure to read more of it."
        else:
            self.mode, self.detail, self.scroll = "detail", self.selected, 0

    def _propose(self, key: str, glance: Glance) -> None:
        found = _deed(key, self.selected, glance)
        if isinstance(found, Deed):
            self.question, self.mode = found, "ask"
        else:
            self.message = found


def _deed(key: str, selected: Item | None, glance: Glance) -> Deed | str:
    """What the key would do to what is selected, or why it does nothing."""
    if selected is None:
        return "Nothing is selected."
    if key == "p":
        return _pausing(selected, glance)
    if selected.kind == "queue":
        return "Select a job to cancel it." if key == "c" else "Select a failure to try it again."
    if selected.kind == "job":
        job = next((job for job in glance.running if job.id == selected.name), None)
        if job is None or key != "c":
            return f"Job {selected.name} is running: there is nothing to retry."
        return Deed("cancel", f"Cancel job {job.id} ({_named(job.task)}), which is running?", job.id)
    failure = next((one for one in glance.failures if failure_name(one) == selected.name), None)
    return "That failure is gone." if failure is None else _mending(key, failure)


def _mending(key: str, failure: FailureLine) -> Deed | str:
    info, status = failure
    if key == "R":
        where = f"{_named(info.task)} on {clean(info.queue)}"
        question = f" of {where} with {clean(info.error_code)}?"  # behind how many there are
        return Deed("retry all", question, queue=info.queue, task=info.task, error_code=info.error_code)
    job = f"job {info.last_job_id} ({_named(info.task)})"
    if status is None:
        return f"J{job[1:]} is gone."
    if key == "c":
        if status not in UNFINISHED:
            return f"J{job[1:]} has ended, as {status}: there is nothing to cancel."
        return Deed("cancel", f"Cancel {job}, which is {status}?", info.last_job_id)
    if status not in ("failed", "cancelled"):
        return f"J{job[1:]} is {status} by now: there is nothing to retry."
    return Deed("retry", f"Retry {job}, which is {status}?", info.last_job_id)


def _pausing(selected: Item, glance: Glance) -> Deed | str:
    name = _queue_of(selected, glance)
    queue: QueueLine | None = next((one for one in glance.queues if one.name == name), None)
    if queue is None:
        return "That queue is gone."
    if queue.paused:
        return Deed("resume", f"Resume the queue {clean(queue.name)}?", queue=queue.name)
    return Deed("pause", f"Pause the queue {clean(queue.name)}? What runs goes on.", queue=queue.name)


def _queue_of(selected: Item, glance: Glance) -> str | None:
    if selected.kind == "queue":
        return str(selected.name)
    if selected.kind == "failure":
        return str(selected.name[1])
    return next((job.queue for job in glance.running if job.id == selected.name), None)


def _named(task: str | None) -> str:
    return "message" if task is None else clean(task)
