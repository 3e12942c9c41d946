"""The figures as a table, for a terminal and for a Markdown file."""

import platform
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from os import cpu_count

from .measure import Figure

Row = Sequence[str]

HEAD: Row = ("figure", "floor", "ours", "ratio", "spread", "target", "met?")


def figure_row(figure: Figure) -> Row:
    unit = figure.target.unit if figure.target else "×"
    value = "" if figure.value is None else f"{figure.value:.2f} {unit}"
    spread = "" if figure.spread is None else "{:.2f}–{:.2f}".format(*figure.spread)
    target = "" if figure.target is None else str(figure.target)
    met = {None: "", True: "yes", False: "NO"}[figure.met]
    return figure.name, figure.floor, figure.ours, value, spread, target, met


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
    return (
        f"{cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, a flush of 4 KiB takes {flush_milliseconds:.2f} ms; "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
