"""Numbers as small pictures, in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

from ..output import GAP, Cell, Column, clean, fit


def share_out(room: int, wants: Sequence[int]) -> list[int]:
    """So many lines for each, none more than it wants: one after the other in turn, until there is no room."""
    given = [0] * len(wants)
    left = min(room, sum(wants))
    while left > 0:
        for index, want in enumerate(wants):
            if given[index] < want and left > 0:
                given[index] += 1
                left -= 1
    return given


def window(length: int, size: int, at: int | None) -> range:
    """Which of `length` rows are shown in `size` lines, so that the one at `at` is among them, near the middle."""
    if length <= size or size <= 0:
        return range(min(length, max(size, 0)))
    begin = 0 if at is None else min(max(0, at - size // 2), length - size)
    return range(begin, begin + size)


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


HEIGHTS, ASCII_HEIGHTS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float], *, plain: bool = False) -> str:
    """A column for each, as high as it is beside the highest; nothing is the lowest, and only nothing."""
    heights = ASCII_HEIGHTS if plain else HEIGHTS
    most = max(values, default=0)
    if most <= 0:
        return heights[0] * len(values)
    top = len(heights) - 1
    return "".join(heights[0 if value <= 0 else max(1, round(top * value / most))] for value in values)


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """A bar of this width that is filled by a share from 0 to 1."""
    share = min(1.0, max(0.0, share))
    if plain:
        full = int(share * width)
        return "#" * full + "." * (width - full)
    full, part = divmod(int(share * width * 8), 8)
    filled = "█" * full + (EIGHTHS[part] if part else "")
    return filled + "·" * (width - len(filled))
