"""Numbers as small pictures, in one line of text."""

from collections.abc import Sequence

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
