"""Output: numbers and times as text, tables for people, JSON for programs. Imports Rich only to draw.

Standard streams that are closed or cannot be written are handled here, once for all commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar, cast

import click
import msgspec

from ..text import clean, plural, span, to_data

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn

    from ..model.job import Page


__all__ = ["clean", "plural", "span"]

T = TypeVar("T")

PIPE_WIDTH = 100_000
GAP = 2  # spaces between columns
ELLIPSIS = "…"
STYLES = {
    "blocked": "magenta",
    "scheduled": "blue",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "paused": "yellow",
}


# --- numbers and times ---


def clean_lines(text: str) -> str:
    """As `clean`, but keep line breaks."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.split("\n"))


def age(since: datetime, now: datetime) -> str:
    """Return how long ago that was, in whole seconds."""
    return span(max(0, int((now - since).total_seconds())))


def due(moment: datetime, now: datetime) -> str:
    """`in 5m`, or `now` for a time that has passed."""
    seconds = (moment - now).total_seconds()
    return f"in {span(max(1, round(seconds)))}" if seconds > 0 else "now"


def utc_text(moment: datetime) -> str:
    """Format the time for reading: UTC, with milliseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def local_text(moment: datetime, tz: str) -> str:
    """Format the time in a zone, with the abbreviation of the zone; in UTC if there is no such zone."""
    from zoneinfo import ZoneInfo

    try:
        zone: tzinfo = ZoneInfo(tz)
    except (LookupError, ValueError, OSError):  # the row was edited by hand
        zone = UTC
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def short(count: int) -> str:
    """Return the count in at most six characters: `99,999`, `123k`, `1.2M`."""
    if abs(count) < 100_000:
        return f"{count:,}"
    value, unit = count / 1000, "k"
    if abs(value) >= 999.5:
        value, unit = value / 1000, "M"
    if abs(value) >= 999.5:
        value, unit = value / 1000, "G"
    return f"{value:.{1 if abs(value) < 9.95 else 0}f}{unit}"


def percent(part: float, whole: float) -> str:
    """Return the share. `0%` and `100%` are exact: almost none is `<1%`, almost all is `>99%`."""
    if not whole or not part:
        return "0%"
    share = 100 * part / whole
    if share < 1:
        return "<1%"
    return ">99%" if 99 < share < 100 else f"{share:.0f}%"


def known(count: int | None) -> str:
    """Return the count, or `?` if it is unknown."""
    return "?" if count is None else str(count)


# --- lines and JSON ---


def say(text: str) -> None:
    """Print one line to stdout."""
    _write(clean(text) + "\n")


def say_lines(text: str) -> None:
    """Print text with line breaks to stdout."""
    _write(clean_lines(text) + "\n")


def paragraph(text: str) -> None:
    """Print a paragraph to stdout, wrapped at the width of a terminal."""
    from rich.text import Text

    console = _console()
    _print(console, Text(clean(text), no_wrap=not console.is_terminal))


def note(text: str) -> None:
    """Print one line to stderr: a hint for the operator that must not end up in a pipe."""
    write_stderr(clean(text))


def document(value: Any) -> None:
    """Print one JSON document, indented on a terminal."""
    data = msgspec.json.encode(to_data(value))
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    _write(_escape_json(data.decode()) + "\n")


def json_lines(values: Iterable[Any]) -> None:
    """Print one JSON document per line."""
    _write("".join(f"{_escape_json(msgspec.json.encode(to_data(value)).decode())}\n" for value in values))


def _escape_json(text: str) -> str:
    """Escape characters that JSON allows but a terminal would act on."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _write(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # color=True: the text is escaped already, and Rich has decided about colours, so click must not strip anything.
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, color=True)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on stderr that disappears at the end."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)


# --- tables ---


class Cell(NamedTuple):
    """Text with a style."""

    text: str
    style: str = ""


Row = Sequence[Cell | str]


class Column(NamedTuple):
    """A column of a table.

    least: the width down to which it may be cut. spare: on a narrow terminal, the column with the highest value is
    left out first; 0 is never left out.
    """

    title: str
    right: bool = False
    least: int | None = None
    spare: int = 0


def status_cell(status: str) -> Cell:
    return Cell(status, STYLES.get(status, ""))


def task_cell(task: str | None) -> Cell:
    return Cell("message", "italic") if task is None else Cell(task)


def table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print a table that fits the terminal; into a pipe, every column and every value in full."""
    console = _console()
    lines(grid(columns, rows, console.width, keep_empty=not console.is_terminal), gap=0)


def print_page(
    noun: str,
    page: Page[T],
    columns: Sequence[Column],
    row: Callable[[T, datetime], Row],
    as_json: bool,
) -> None:
    """Print a page of a list as a table or as JSON, and how to continue. noun: what is listed, in the plural."""
    if as_json:
        document({noun: page.items, "next": page.next, "previous": page.previous})
        return
    if not page:
        note(f"No {noun}.")
        return
    now = datetime.now(UTC)
    table(columns, [row(one, now) for one in page])
    if page.next is not None:
        note(f"More {noun}: add --cursor {page.next}")


def grid(columns: Sequence[Column], rows: Sequence[Row], width: int, *, keep_empty: bool = False) -> list[list[Cell]]:
    """Lay out a table for this width: the titles, then one line per row. Empty columns are left out."""
    from rich.cells import cell_len

    cells = [[_cell(value) for value in row] for row in rows]
    natural = {
        index: max(1, len(column.title), *(cell_len(row[index].text) for row in cells))
        for index, column in enumerate(columns)
        if keep_empty or any(row[index].text for row in cells)
    }
    shown = fit(columns, natural, width)
    result = []
    for row in [[Cell(column.title, "bold") for column in columns], *cells]:
        line: list[Cell] = []
        for index, size in shown.items():
            line += [Cell(_sized(row[index].text, size, columns[index].right), row[index].style), Cell(" " * GAP)]
        result.append(line[:-1])
    return result


def _sized(text: str, size: int, right: bool) -> str:
    """Cut or pad the text to this width, as a terminal counts it: some characters are two columns wide."""
    from rich.cells import cell_len, set_cell_size

    length = cell_len(text)
    if length > size:
        return set_cell_size(text, size - 1) + ELLIPSIS
    blank = " " * (size - length)
    return blank + text if right else text + blank


def fit(columns: Sequence[Column], natural: Mapping[int, int], width: int) -> dict[int, int]:
    """Return the indexes of the columns that fit into this width, each with its own width."""
    shown = dict(natural)
    least = {index: min(columns[index].least or size, size) for index, size in natural.items()}
    while _total(least[index] for index in shown) > width:
        spare = max(shown, key=lambda index: columns[index].spare)
        if not columns[spare].spare:
            break
        del shown[spare]
    _shrink(shown, least, width)
    _shrink(shown, dict.fromkeys(shown, 1) | {0: natural.get(0, 1)}, width)  # never the first: it names the row
    return shown


def _shrink(shown: dict[int, int], least: Mapping[int, int], width: int) -> None:
    """Narrow the columns, always the one furthest above its least width, until they fit or none can be narrowed."""
    while _total(shown.values()) > width:
        widest = max(shown, key=lambda index: shown[index] - least[index])
        if shown[widest] <= least[widest]:
            return
        shown[widest] -= 1


def _total(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP


def share_lines(available: int, wanted: Sequence[int]) -> list[int]:
    """Divide the lines of a screen among tables, one line to each in turn, none more than it wants."""
    given = [0] * len(wanted)
    left = min(available, sum(wanted))
    while left > 0:
        for index, most in enumerate(wanted):
            if given[index] < most and left > 0:
                given[index] += 1
                left -= 1
    return given


# --- other layouts ---


def lines(rows: Iterable[Row], *, wrap: bool = False, gap: int = GAP) -> None:
    """Print cells side by side, cut or wrapped at the edge of a terminal; into a pipe, in full."""
    from rich.console import Group
    from rich.text import Text

    between = Text(" " * gap, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")
    drawn = [between.join(Text(cell.text, style=cell.style) for cell in map(_cell, row)) for row in rows]
    _print(_console(), Group(*drawn))


def fields(pairs: Sequence[tuple[str, Cell | str]]) -> None:
    """Print one name and value per line. A long value is wrapped and indented."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        cell = value if isinstance(value, Cell) else Cell(value)
        drawn.add_row(Text(name), Text(clean_lines(cell.text), style=cell.style))
    _print(_console(), drawn)


class Branch(NamedTuple):
    """A line of a tree and its children."""

    cells: Row
    children: Sequence[Branch] = ()


def tree(root: Branch) -> None:
    """Print a tree. Lines are cut at the edge of a terminal; into a pipe, they are printed in full."""
    from rich.text import Text
    from rich.tree import Tree

    def label(branch: Branch) -> Text:
        cells = [_cell(value) for value in branch.cells]
        parts = [Text(cell.text, style=cell.style) for cell in cells if cell.text]
        return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)

    def add_children(branch: Branch, parent: Tree) -> None:
        for child in branch.children:
            add_children(child, parent.add(label(child)))

    drawn = Tree(label(root), guide_style="dim")
    add_children(root, drawn)
    _print(_console(), drawn)


def _cell(value: Cell | str) -> Cell:
    return Cell(clean(value.text), value.style) if isinstance(value, Cell) else Cell(clean(value))


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _print(console: Console, drawn: RenderableType) -> None:
    with console.capture() as capture:
        console.print(drawn)
    _write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}  # in the order of their file descriptors


def open_missing() -> None:
    """Open /dev/null for each standard stream that was closed at startup, as under cron or a daemon.

    Otherwise the next file to be opened would get the free descriptor, and with it whatever a library prints.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)  # the lowest free descriptor
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace"))  # noqa: PTH123, SIM115


class WatchedOutput:
    """Standard output that remembers its write error, to distinguish it from errors of other files."""

    def __init__(self, stream: Any, owner: WatchedOutput | None = None) -> None:
        self._stream, self._owner = stream, owner or self
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Any:  # click writes here if the encoding is ASCII
        return WatchedOutput(self._stream.buffer, self._owner)

    def write(self, data: Any) -> Any:
        with self._record_error():
            return self._stream.write(data)

    def flush(self) -> None:
        with self._record_error():
            self._stream.flush()

    @contextmanager
    def _record_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._owner.error = error
            raise

    def __enter__(self) -> WatchedOutput:
        sys.stdout = cast(TextIO, self)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stdout is cast(TextIO, self):
            sys.stdout = self._stream


def write_stderr(text: str) -> None:
    """Write a line to stderr, and ignore that stderr cannot be written."""
    try:
        click.echo(text, err=True)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that flushing its buffer at exit raises no error."""
    with suppress(OSError, ValueError):  # the stream may have no file descriptor
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
