"""Draw `holdfast top`: data and state to lines of a screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ...clock import as_datetime
from ..commands.stats import STATUS_ORDER
from ..commands.worker import queue_names, worker_cells
from ..output import Cell, Column, Row, age, clean, grid, share_lines, short, span, status_cell, task_cell
from .state import Item, TopState, failure_name

if TYPE_CHECKING:
    from ...model.job import JobRecord
    from .state import FailureLine, QueueLine, TopData


Line = Sequence[Cell]
HEAD_LINES, FOOTER_LINES = 3, 1
SPACED_FROM = 20  # lines of a screen on which empty lines separate the tables
BAR_WIDTH = 10
PER_SECOND_FROM = 600  # per minute
QUEUE_COLUMNS = (
    Column("QUEUE", least=10), Column("READY", right=True), Column("RUNNING", right=True),
    Column("SCHEDULED", right=True, spare=3), Column("BLOCKED", right=True, spare=4),
    Column("FAILED", right=True), Column("DONE/MIN", right=True, spare=1),
    Column("OLDEST READY", right=True, spare=2), Column("STATE"),
)  # fmt: skip
JOB_COLUMNS = (
    Column("RUNNING", right=True), Column("TASK", least=8), Column("QUEUE", least=6, spare=2),
    Column("ATTEMPT", right=True, spare=3), Column("TIME", right=True), Column("PROGRESS", least=BAR_WIDTH + 5),
    Column("WORKER", least=8, spare=1),
)  # fmt: skip
FAILURE_COLUMNS = (
    Column("FAILURE", least=16), Column("COUNT", right=True), Column("TASK", least=8),
    Column("QUEUE", least=6, spare=1), Column("LAST SEEN", right=True), Column("LAST JOB", right=True),
    Column("NOW", spare=2),
)  # fmt: skip
WORKER_COLUMNS = (
    Column("WORKER", least=8), Column("STATE"), Column("RUNNING", right=True), Column("HEARTBEAT", right=True),
    Column("PID", right=True, spare=2), Column("HOST", least=6, spare=3), Column("QUEUES", least=8, spare=1),
)  # fmt: skip
KEYS = (
    ("q", "quit"), ("↑↓", "select"), ("/", "filter"), ("r", "retry"), ("c", "cancel"), ("p", "pause"),
    ("↵", "details"), ("?", "help"),
)  # fmt: skip
HELP = """\
q          quit
↑ ↓ j k    select the previous or next row; also PgUp, PgDn, Home and End
Tab        go to the next table
/          show only queues and tasks whose name contains a text; Esc shows all
Enter      show details of the selected job or failure
r          retry the last job of the selected failure
R          retry all failed jobs of that task, queue and error code
c          cancel the selected job
p          pause or resume the queue of the selected row
Ctrl-L     redraw the screen

Every change asks for confirmation: y confirms, any other key declines."""


class TopTable(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[tuple[Item | None, Row]]  # a row without an item cannot be selected


def draw(
    data: TopData, state: TopState, location: str, size: tuple[int, int], now: datetime, *, plain: bool = False
) -> list[Line]:
    """Draw the main screen."""
    width, height = size
    head = [_title(location, state.pattern, now, width), _counts(data), _rate(data, width, plain)]
    available = height - HEAD_LINES - FOOTER_LINES
    body = _body(_tables(data, now, plain), state.selected, width, available, spaced=height >= SPACED_FROM)
    if not body:
        body = [[Cell("")], [Cell("  No job is waiting, running or failed.", "dim")]]
    body = list(body[:available])
    return [*head, *body, *([[]] * (available - len(body))), _footer(state)][-height:]


def page(title: str, text: Sequence[Cell], state: TopState, size: tuple[int, int]) -> list[Line]:
    """Draw a full-screen page of text."""
    available = size[1] - 3
    state.scroll = min(state.scroll, max(0, len(text) - available))
    shown = [[Cell(" "), line] for line in text[state.scroll : state.scroll + available]]
    below = len(text) - state.scroll - available
    footer = "q: quit, any other key: back" + (f", ↓: {below} more lines" if below > 0 else "")
    return [[Cell(title, "bold")], [], *shown, *([[]] * (available - len(shown))), [Cell(footer, "dim")]]


# --- header and footer ---


def _title(location: str, pattern: str, now: datetime, width: int) -> Line:
    clock, name = f"{now:%H:%M:%S} UTC", clean(location)
    left = [Cell("holdfast top", "bold"), Cell("  ")]
    right = [Cell("  filter: "), Cell(clean(pattern), "bold yellow")] if pattern else []
    available = width - len(clock) - 2 - sum(len(cell.text) for cell in (*left, *right))
    if len(name) > available:
        name = f"…{name[len(name) - available + 1 :]}" if available > 1 else ""  # the end of a path tells more
    blank = " " * max(2, available + 2 - len(name))
    return [*left, Cell(name, "dim"), *right, Cell(blank), Cell(clock)]


def _counts(data: TopData) -> Line:
    found: list[Cell] = []
    for name in STATUS_ORDER:
        count = data.counts.get(name, 0)
        if count:
            found += [Cell(short(count), f"bold {status_cell(name).style}".rstrip()), Cell(f" {name}  ", "dim")]
    if data.batches:
        noun = "batch" if data.batches == 1 else "batches"
        found += [Cell(short(data.batches), "bold"), Cell(f" unfinished {noun}  ", "dim")]
    return found or [Cell("no jobs", "dim")]


def _rate(data: TopData, width: int, plain: bool) -> Line:
    done, failed = _rate_text(data.done_per_minute), _rate_text(data.failed_per_minute)
    available = max(10, min(len(data.done), width - 44))
    return [
        Cell(sparkline(data.done[-available:], plain=plain), "green"),
        Cell(f"  {done} done", "bold"),
        Cell(f"  {failed} failed", "red" if data.failed_per_minute >= 1 else "dim"),
        Cell(f"  last {available}m", "dim"),
    ]


def _rate_text(rate: float) -> str:
    return f"{short(round(rate / 60))}/s" if rate >= PER_SECOND_FROM else f"{short(round(rate))}/min"


def _footer(state: TopState) -> Line:
    if state.mode == "filter":
        return [Cell("queue or task: ", "bold"), Cell(clean(state.typed))]
    if state.question is not None:
        return [Cell(f"{state.question.question} ", "bold yellow"), Cell("y: yes, any other key: no")]
    if state.message:
        return [Cell(state.message, "yellow")]
    return [cell for key, name in KEYS for cell in (Cell(key, "bold"), Cell(f" {name}  ", "dim"))]


# --- the tables ---


def _tables(data: TopData, now: datetime, plain: bool) -> list[TopTable]:
    since = (now - data.at).total_seconds()
    found = [
        TopTable(QUEUE_COLUMNS, [(Item("queue", one.name), _queue_row(one, since)) for one in data.queues]),
        TopTable(JOB_COLUMNS, [(Item("job", one.id), _job_row(one, now, plain)) for one in data.running]),
        TopTable(
            FAILURE_COLUMNS,
            [(Item("failure", failure_name(one)), _failure_row(one, now)) for one in data.failures],
        ),
        TopTable(WORKER_COLUMNS, [(None, [*worker_cells(one, now), queue_names(one)]) for one in data.workers]),
    ]
    return [table for table in found if table.rows]


def _body(
    tables: Sequence[TopTable], selected: Item | None, width: int, available: int, *, spaced: bool
) -> list[Line]:
    """Draw the tables, each with as many rows as fit; the selected row is always shown."""
    frame = 2 if spaced else 1
    tables = tables[: max(1, available // (frame + 1))]
    sizes = share_lines(available - frame * len(tables), [len(table.rows) for table in tables])
    lines: list[Line] = []
    for table, size in zip(tables, sizes, strict=True):
        if not size:
            continue
        items = [item for item, _ in table.rows]
        at = items.index(selected) if selected is not None and selected in items else None
        shown = window(len(table.rows), size, at)
        left = len(table.rows) - len(shown)
        more = f"  +{left} more" if left else ""
        drawn = grid(table.columns, [table.rows[index][1] for index in shown], width - len(more))
        head = [*drawn[0], Cell(more, "dim")]
        lines += [[], head] if spaced else [head]
        for index, line in zip(shown, drawn[1:], strict=True):
            lines.append(_highlighted(line, width) if index == at else line)
    return lines


def _highlighted(line: Line, width: int) -> Line:
    from rich.cells import cell_len

    padding = Cell(" " * (width - sum(cell_len(cell.text) for cell in line)))
    return [Cell(cell.text, f"{cell.style} reverse".strip()) for cell in (*line, padding)]


def _queue_row(one: QueueLine, since: float) -> Row:
    counts = one.counts
    oldest = one.oldest if one.oldest is not None and counts.get("ready") else None
    return [
        one.name,
        *(_number(counts.get(name, 0)) for name in ("ready", "running", "scheduled", "blocked")),
        Cell(_number(counts.get("failed", 0)), "red" if counts.get("failed") else ""),
        _number(round(one.per_minute)),
        "" if oldest is None else span(int(oldest + since)),
        status_cell("paused") if one.paused else "",
    ]


def _number(count: int) -> str:
    return short(count) if count else "·"


def _job_row(job: JobRecord, now: datetime, plain: bool) -> Row:
    return [
        str(job.id),
        task_cell(job.task),
        job.queue,
        f"{job.attempt}/{job.max_attempts}",
        "claimed" if job.started_at is None else age(as_datetime(job.started_at), now),
        _progress(job, plain),
        job.worker or "",
    ]


def _progress(job: JobRecord, plain: bool) -> Cell:
    if job.progress is None:
        return Cell(job.progress_text or "", "dim")
    drawn = bar(job.progress, BAR_WIDTH, plain=plain)
    return Cell(f"{drawn} {job.progress:4.0%} {job.progress_text or ''}".rstrip(), "cyan")


def _failure_row(one: FailureLine, now: datetime) -> Row:
    info = one.info
    return [
        Cell(info.error_code, "red"),
        short(info.count),
        task_cell(info.task),
        info.queue,
        f"{age(info.last_seen, now)} ago",
        str(info.last_job_id),
        Cell("deleted", "dim") if one.status is None else status_cell(one.status),
    ]


# --- geometry ---


def window(length: int, size: int, at: int | None) -> range:
    """Return which of `length` rows to show in `size` lines, such that the row `at` is near the middle."""
    if length <= size or size <= 0:
        return range(min(length, max(size, 0)))
    begin = 0 if at is None else min(max(0, at - size // 2), length - size)
    return range(begin, begin + size)


def sparkline(values: Sequence[float], *, plain: bool = False) -> str:
    """Draw one character per value, scaled to the largest. Only 0 has the lowest character."""
    heights = "_.:-=+*#" if plain else "▁▂▃▄▅▆▇█"
    largest = max(values, default=0)
    if largest <= 0:
        return heights[0] * len(values)
    top = len(heights) - 1
    return "".join(heights[0 if value <= 0 else max(1, round(top * value / largest))] for value in values)


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """Draw a bar of this width, filled by a share from 0 to 1."""
    share = min(1.0, max(0.0, share))
    if plain:
        full = int(share * width)
        return "#" * full + "." * (width - full)
    full, eighths = divmod(int(share * width * 8), 8)
    filled = "█" * full + (" ▏▎▍▌▋▊▉"[eighths] if eighths else "")
    return filled + "·" * (width - len(filled))
