"""What is printed: tables for people, JSON for programs. Rich is imported only when a table is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click
import msgspec

from ..text import clean, plural, span
from .streams import tell

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn


__all__ = ["age", "clean", "clean_lines", "due", "iso", "local", "optional_iso", "plural", "span", "written"]


def clean_lines(text: str) -> str:
    """As `clean`, but lines stay lines."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.split("\n"))


def age(since: datetime, now: datetime) -> str:
    """How long ago, in whole seconds."""
    return span(max(0, int((now - since).total_seconds())))


def due(moment: datetime, now: datetime) -> str:
    seconds = (moment - now).total_seconds()
    return f"in {span(max(1, round(seconds)))}" if seconds > 0 else "now"


def iso(moment: datetime) -> str:
    """ISO 8601, always of the same length, so that it can be compared as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def optional_iso(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)


def local(moment: datetime) -> str:
    """For reading: UTC, to the millisecond."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def written(detail: dict[str, Any], write: Callable[[datetime], str]) -> dict[str, Any]:
    """What belongs to an event, with its moments as text."""
    return {name: write(value) if isinstance(value, datetime) else value for name, value in detail.items()}


def short(count: int) -> str:
    """In six characters at most: `99,999`, `123k`, `1.2M`."""
    if abs(count) < 100_000:
        return f"{count:,}"
    value, unit = count / 1000, "k"
    if abs(value) >= 999.5:
        value, unit = value / 1000, "M"
    if abs(value) >= 999.5:
        value, unit = value / 1000, "G"
    return f"{value:.{1 if abs(value) < 9.95 else 0}f}{unit}"


def percent(part: float, whole: float) -> str:
    """`0%` and `100%` mean none and all: what is nearly so is `<1%` and `>99%`."""
    if not whole or not part:
        return "0%"
    share = 100 * part / whole
    if share < 1:
        return "<1%"
    return ">99%" if 99 < share < 100 else f"{share:.0f}%"


def known(count: int | None) -> str:
    """A count that may be unknown."""
    return "?" if count is None else str(count)


UNLIMITED = 100_000
GAP = 2
STYLES = {
    "blocked": "magenta",
    "scheduled": "blue",
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "paused": "yellow",
}
F = TypeVar("F", bound=Callable[..., Any])


class Cell(NamedTuple):
    """A text and the style it is shown in."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """`least` is the width down to which it may be cut; of those with `spare`, the highest is left out first."""

    title: str
    right: bool = False
    least: int | None = None
    spare: int = 0


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(command)


def state(name: str) -> Cell:
    return Cell(name, STYLES.get(name, ""))


# --- to stdout and stderr ---


def say(text: str) -> None:
    """One line on stdout."""
    _write(clean(text) + "\n")


def say_lines(text: str) -> None:
    _write(clean_lines(text) + "\n")


def paragraph(text: str) -> None:
    """A sentence or two on stdout: on a terminal, in lines that are no wider than it."""
    from rich.text import Text

    console = _console()
    _print(console, Text(clean(text), no_wrap=not console.is_terminal))


def note(text: str) -> None:
    """One line on stderr: for the person, not for the pipe."""
    tell(clean(text))


def document(value: Any) -> None:
    """One JSON document; on a terminal it is indented."""
    data = msgspec.json.encode(value)
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    text = data.decode()
    _write("".join(map(_json_safe, text)) + "\n" if not text.isprintable() else text + "\n")


def json_lines(values: Iterable[Any]) -> None:
    """One JSON document on each line."""
    texts = [msgspec.json.encode(value).decode() for value in values]
    _write("".join(f"{text if text.isprintable() else ''.join(map(_json_safe, text))}\n" for text in texts))


def _json_safe(character: str) -> str:
    """msgspec escapes what JSON demands; a terminal acts on more than that."""
    if character.isprintable() or character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _write(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # Rich and _json_safe have decided about colours and escapes: click must not once more.
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False, color=True)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """On stderr, and gone when it has ended."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)


# --- tables ---


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> None:
    """As wide as the terminal; into a pipe, every column and every value in full."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    cells = [[_cell(value) for value in row] for row in rows]
    filled = [
        index for index in range(len(columns)) if not console.is_terminal or any(row[index].text for row in cells)
    ]
    natural = {index: _natural_width(columns[index], [row[index].text for row in cells]) for index in filled}
    shown = fit(columns, natural, console.width)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for index, width in shown.items():
        side: Literal["left", "right"] = "right" if columns[index].right else "left"
        drawn.add_column(Text(columns[index].title), justify=side, width=width, no_wrap=True, overflow="ellipsis")
    for row in cells:
        drawn.add_row(*(Text(row[index].text, style=row[index].style) for index in shown))
    _print(console, drawn)


def lines(rows: Iterable[Sequence[Cell | str]], *, wrap: bool = False, gap: int = GAP) -> None:
    """Cells side by side, cut at the edge of a terminal, or wrapped; into a pipe, they go in full."""
    from rich.console import Group
    from rich.text import Text

    between = Text(" " * gap, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")
    drawn = [between.join(Text(cell.text, style=cell.style) for cell in map(_cell, row)) for row in rows]
    _print(_console(), Group(*drawn))


def fields(pairs: Sequence[tuple[str, Cell | str]]) -> None:
    """One name and value per line; a long value goes on below itself."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    drawn = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        cell = value if isinstance(value, Cell) else Cell(value)
        drawn.add_row(Text(name), Text(clean_lines(cell.text), style=cell.style))
    _print(console, drawn)


class Branch(NamedTuple):
    """A line of a tree, and what hangs on it."""

    cells: Sequence[Cell | str]
    below: Sequence[Branch] = ()


def tree(root: Branch) -> None:
    """Lines are cut at the edge of a terminal; into a pipe, they go in full."""
    from rich.text import Text
    from rich.tree import Tree

    def label(branch: Branch) -> Text:
        cells = [_cell(value) for value in branch.cells]
        parts = [Text(cell.text, style=cell.style) for cell in cells if cell.text]
        return Text("  ", no_wrap=True, overflow="ellipsis").join(parts)

    def hang(branch: Branch, on: Tree) -> None:
        for one in branch.below:
            hang(one, on.add(label(one)))

    drawn = Tree(label(root), guide_style="dim")
    hang(root, drawn)
    _print(_console(), drawn)


def fit(columns: Sequence[Column], natural: Mapping[int, int], width: int) -> dict[int, int]:
    """Which columns are shown, by their indexes, and how wide each is."""
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
    """Cut one column after the other, the one that can bear most first, until all fit or none can be cut."""
    while _total(shown.values()) > width:
        widest = max(shown, key=lambda index: shown[index] - least[index])
        if shown[widest] <= least[widest]:
            return
        shown[widest] -= 1


def _total(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP


def _natural_width(column: Column, texts: list[str]) -> int:
    from rich.cells import cell_len

    return max(1, len(column.title), *map(cell_len, texts))


def _cell(value: Cell | str) -> Cell:
    return Cell(clean(value.text), value.style) if isinstance(value, Cell) else Cell(clean(value))


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    return console


def _print(console: Console, drawn: RenderableType) -> None:
    with console.capture() as capture:
        console.print(drawn)
    lines = capture.get().splitlines()
    _write("".join(f"{line.rstrip()}\n" for line in lines))
