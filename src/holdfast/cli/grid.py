"""Rows of a table as lines that fit a width, for a screen that draws itself."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Sequence

from .output import GAP, Cell, Column, fit
from .text import clean

ELLIPSIS = "…"


def grid(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], width: int) -> list[list[Cell]]:
    """The names of the columns, and each row. Columns without a value are left out, then those that matter least."""
    from rich.cells import cell_len

    cells = [[_cell(value) for value in row] for row in rows]
    natural = {
        index: max(1, len(column.title), *(cell_len(row[index].text) for row in cells))
        for index, column in enumerate(columns)
        if any(row[index].text for row in cells)
    }
    shown = fit(columns, natural, width)
    titles = [Cell(column.title, "bold") for column in columns]
    return [
        _line([(row[index], size, columns[index].right) for index, size in shown.items()]) for row in [titles, *cells]
    ]


def _line(parts: Sequence[tuple[Cell, int, bool]]) -> list[Cell]:
    found = []
    for cell, size, right in parts:
        found += [Cell(_sized(cell.text, size, right), cell.style), Cell(" " * GAP)]
    return found[:-1]


def _sized(text: str, size: int, right: bool) -> str:
    """Exactly so wide, as a terminal counts: some characters take two places."""
    from rich.cells import cell_len, set_cell_size

    length = cell_len(text)
    if length > size:
        return set_cell_size(text, size - 1) + ELLIPSIS
    blank = " " * (size - length)
    return blank + text if right else text + blank


def padded(line: Sequence[Cell], width: int) -> list[Cell]:
    from rich.cells import cell_len

    used = sum(cell_len(cell.text) for cell in line)
    return [*line, Cell(" " * (width - used))] if used < width else list(line)


def _cell(value: Cell | str) -> Cell:
    return Cell(clean(value.text), value.style) if isinstance(value, Cell) else Cell(clean(value))
