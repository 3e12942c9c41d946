"""How `holdfast top` looks: from what was read, and what is selected, to lines of a screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ...clock import as_datetime
from ..commands.failures import place
from ..commands.stats import ORDER
from ..commands.workers import first_cells, queue_names
from ..output import Cell, Column, age, clean, short, span, state
from .layout import bar, grid, padded, share_out, sparkline, window
from .state import Board, Item, failure_name

if TYPE_CHECKING:
    from ...model.job import JobRecord
    from ...observe.results import WorkerHealth
    from .data import FailureLine, Glance, QueueLine


Line = Sequence[Cell]
Row = Sequence[Cell | str]
HEAD_LINES, FOOT_LINES = 3, 1
LEAST_AIRY = 20  # lines of a screen on which sections have an empty line between them
BAR = 10
PER_SECOND_FROM = 600  # a minute
QUEUE_COLUMNS = (
    Column("QUEUE", least=10),
    Column("READY", right=True),
    Column("RUNNING", right=True),
    Column("SCHEDULED", right=True, spare=3),
    Column("BLOCKED", right=True, spare=4),
    Column("FAILED", right=True),
    Column("DONE/MIN", right=True, spare=1),
    Column("OLDEST READY", right=True, spare=2),
    Column("STATE"),
)
JOB_COLUMNS = (
    Column("RUNNING", right=True),
    Column("TASK", least=8),
    Column("QUEUE", least=6, spare=2),
    Column("TRY", right=True, spare=3),
    Column("FOR", right=True),
    Column("PROGRESS", least=BAR + 5),
    Column("WORKER", least=8, spare=1),
)
FAILURE_COLUMNS = (
    Column("FAILURE", least=16),
    Column("COUNT", right=True),
    Column("TASK", least=8),
    Column("QUEUE", least=6, spare=1),
    Column("LAST SEEN", right=True),
    Column("LAST JOB", right=True),
    Column("NOW", spare=2),
)
WORKER_COLUMNS = (
    Column("WORKER", least=8),
    Column("STATE"),
    Column("RUNNING", right=True),
    Column("HEARTBEAT", right=True),
    Column("PID", right=True, spare=2),
    Column("HOST", least=6, spare=3),
    Column("QUEUES", least=8, spare=1),
)
KEYS = (
    ("q", "quit"), ("↑↓", "select"), ("/", "filter"), ("r", "retry"), ("c", "cancel"), ("p", "pause"),
    ("↵", "more"), ("?", "help"),
)  # fmt: skip
HELP = """\
q          quit
↑ ↓ j k    select the row above or below; PgUp, PgDn, Home and End for more
Tab        go to the next table
/          show only what has a text in the name of its queue or task; Esc shows all
Enter      read more of the selected job or failure
r          retry the last job that failed so
R          retry all failed jobs of that task, queue and error code
c          cancel the selected job
p          pause or resume the queue of the selected row
Ctrl-L     draw the screen again

Whatever changes something asks first: y does it, any other key does not."""


class Section(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[Row]
    items: Sequence[Item | None]
    noun: str


def draw(
    glance: Glance, board: Board, place: str, size: tuple[int, int], now: datetime, *, plain: bool = False
) -> list[Line]:
    """The whole screen."""
    width, height = size
    head = [_title(place, board.wanted, now, width), _counts(glance), _rate(glance, width, plain)]
    room = height - HEAD_LINES - FOOT_LINES
    body = _body(_sections(glance, now, plain), board.selected, width, room, airy=height >= LEAST_AIRY)
    if not body:
        body = [[Cell("")], [Cell("  Nothing waits, runs or has failed.", "dim")]]
    body = list(body[:room])
    return [*head, *body, *([[]] * (room - len(body))), _foot(board)][-height:]


def page(title: str, text: Sequence[Cell], board: Board, size: tuple[int, int]) -> list[Line]:
    """Lines of text over the whole screen, for reading."""
    room = size[1] - 3
    board.scroll = min(board.scroll, max(0, len(text) - room))
    shown = [[Cell(" "), line] for line in text[board.scroll : board.scroll + room]]
    below = len(text) - board.scroll - room
    foot = "q: quit, any other key: back" + (f", ↓: {below} more lines" if below > 0 else "")
    return [[Cell(title, "bold")], [], *shown, *([[]] * (room - len(shown))), [Cell(foot, "dim")]]


# --- the head and the foot ---


def _title(place: str, wanted: str, now: datetime, width: int) -> Line:
    clock, name = f"{now:%H:%M:%S} UTC", clean(place)
    left = [Cell("holdfast top", "bold"), Cell("  ")]
    right = [Cell("  filter: "), Cell(clean(wanted), "bold yellow")] if wanted else []
    room = width - len(clock) - 2 - sum(len(cell.text) for cell in (*left, *right))
    if len(name) > room:
        name = f"…{name[len(name) - room + 1 :]}" if room > 1 else ""  # its end tells more
    blank = " " * max(2, room + 2 - len(name))
    return [*left, Cell(name, "dim"), *right, Cell(blank), Cell(clock)]


def _counts(glance: Glance) -> Line:
    found: list[Cell] = []
    for name in ORDER:
        count = glance.counts.get(name, 0)
        if count:
            found += [Cell(short(count), f"bold {state(name).style}".rstrip()), Cell(f" {name}  ", "dim")]
    return found or [Cell("no jobs", "dim")]


def _rate(glance: Glance, width: int, plain: bool) -> Line:
    done, failed = _per(glance.done_per_minute), _per(glance.failed_per_minute)
    room = max(10, min(len(glance.done), width - 44))
    return [
        Cell(sparkline(glance.done[-room:], plain=plain), "green"),
        Cell(f"  {done} done", "bold"),
        Cell(f"  {failed} failed", "red" if glance.failed_per_minute >= 1 else "dim"),
        Cell(f"  last {room}m", "dim"),
    ]


def _per(rate: float) -> str:
    return f"{short(round(rate / 60))}/s" if rate >= PER_SECOND_FROM else f"{short(round(rate))}/min"


def _foot(board: Board) -> Line:
    if board.mode == "filter":
        return [Cell("queue or task: ", "bold"), Cell(clean(board.typed))]
    if board.question is not None:
        return [Cell(f"{board.question.question} ", "bold yellow"), Cell("y: yes, any other key: no")]
    if board.message:
        return [Cell(board.message, "yellow")]
    return [cell for key, name in KEYS for cell in (Cell(key, "bold"), Cell(f" {name}  ", "dim"))]


# --- the tables ---


def _sections(glance: Glance, now: datetime, plain: bool) -> list[Section]:
    since = (now - glance.at).total_seconds()
    found = [
        Section(
            QUEUE_COLUMNS,
            [_queue_row(one, since) for one in glance.queues],
            [Item("queue", one.name) for one in glance.queues],
            "queue",
        ),
        Section(
            JOB_COLUMNS,
            [_job_row(one, now, plain) for one in glance.running],
            [Item("job", one.id) for one in glance.running],
            "job",
        ),
        Section(
            FAILURE_COLUMNS,
            [_failure_row(one, now) for one in glance.failures],
            [Item("failure", failure_name(one)) for one in glance.failures],
            "failure",
        ),
        Section(
            WORKER_COLUMNS, [_worker_row(one, now) for one in glance.workers], [None] * len(glance.workers), "worker"
        ),
    ]
    return [section for section in found if section.rows]


def _body(sections: Sequence[Section], selected: Item | None, width: int, room: int, *, airy: bool) -> list[Line]:
    """As many rows of each as there is room for; of the selected row's table, those around it."""
    frame = 2 if airy else 1
    sections = sections[: max(1, room // (frame + 1))]
    sizes = share_out(room - frame * len(sections), [len(section.rows) for section in sections])
    lines: list[Line] = []
    for section, size in zip(sections, sizes, strict=True):
        if not size:
            continue
        at = section.items.index(selected) if selected in section.items else None
        shown = window(len(section.rows), size, at)
        left = len(section.rows) - len(shown)
        more = f"  +{left} more" if left else ""
        drawn = grid(section.columns, [section.rows[index] for index in shown], width - len(more))
        head = [*drawn[0], Cell(more, "dim")]
        lines += [[], head] if airy else [head]
        for index, line in zip(shown, drawn[1:], strict=True):
            lines.append(_marked(line, width) if selected is not None and index == at else line)
    return lines


def _marked(line: Line, width: int) -> Line:
    return [Cell(cell.text, f"{cell.style} reverse".strip()) for cell in padded(line, width)]


def _queue_row(one: QueueLine, since: float) -> Row:
    counts = one.counts
    oldest = one.oldest if one.oldest is not None and counts.get("ready") else None
    return [
        one.name,
        *(_number(counts.get(name, 0)) for name in ("ready", "running", "scheduled", "blocked")),
        Cell(_number(counts.get("failed", 0)), "red" if counts.get("failed") else ""),
        _number(round(one.per_minute)),
        "" if oldest is None else span(int(oldest + since)),
        state("paused") if one.paused else "",
    ]


def _number(count: int) -> str:
    return short(count) if count else "·"


def _job_row(job: JobRecord, now: datetime, plain: bool) -> Row:
    return [
        str(job.id),
        place(job.task),
        job.queue,
        f"{job.attempt}/{job.max_attempts}",
        "taken" if job.started_at is None else age(as_datetime(job.started_at), now),
        _progress(job, plain),
        job.worker or "",
    ]


def _progress(job: JobRecord, plain: bool) -> Cell:
    if job.progress is None:
        return Cell(job.progress_text or "", "dim")
    drawn = bar(job.progress, BAR, plain=plain)
    return Cell(f"{drawn} {job.progress:4.0%} {job.progress_text or ''}".rstrip(), "cyan")


def _failure_row(one: FailureLine, now: datetime) -> Row:
    info = one.info
    return [
        Cell(info.error_code, "red"),
        short(info.count),
        place(info.task),
        info.queue,
        f"{age(info.last_seen, now)} ago",
        str(info.last_job_id),
        Cell("gone", "dim") if one.status is None else state(one.status),
    ]


def _worker_row(one: WorkerHealth, now: datetime) -> Row:
    return [*first_cells(one, now), queue_names(one)]
