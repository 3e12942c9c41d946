"""Numbers for a person's eyes: short where room is short."""


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
