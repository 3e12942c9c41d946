"""Print figures and tables, for a terminal and for a Markdown file."""

import platform
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from os import cpu_count

from .measure import Figure

Row = Sequence[str]

HEAD: Row = ("figure", "ours", "beside", "reached", "spread", "target", "result")
RESULT = {None: "", True: "met", False: "MISSED"}
PEERS = ("litequeue", "huey")


def figure_row(figure: Figure) -> Row:
    unit = figure.target.unit if figure.target else figure.unit
    reached = "" if figure.reached is None else f"{_number(figure.reached)} {unit}"
    spread = "" if figure.spread is None else "–".join(map(_number, figure.spread))
    target = "" if figure.target is None else str(figure.target)
    return figure.name, figure.ours, figure.beside, reached, spread, target, RESULT[figure.met]


def _number(value: float) -> str:
    """Three digits, so that 0.447 is not shown as the 0.45 that it should be."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def summary(figures: Sequence[Figure]) -> str:
    results = [figure.met for figure in figures if figure.met is not None]
    return f"{results.count(True)} of {len(results)} targets met, {results.count(False)} missed"


def as_text(head: Row, rows: Sequence[Row]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Row, widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def as_markdown(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(flush_milliseconds: float) -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in PEERS)
    return (
        f"{cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {peers}; a flush of 4 KiB takes {flush_milliseconds:.2f} ms; "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
