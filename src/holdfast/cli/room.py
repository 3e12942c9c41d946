"""How a screen's lines are shared by what is to be shown on it."""

from collections.abc import Sequence


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
