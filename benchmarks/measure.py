"""Measure several sides in turns, so that whatever disturbs the machine disturbs all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

Action = Callable[[], object]
Turn = Callable[[], float]  # does its work once and returns how many operations it did in a second


@dataclass(frozen=True)
class Effort:
    """How much work to do: all of it, or a little to see that the benchmarks run."""

    rounds: int
    part: float
    rows: int  # in the largest files

    def of(self, full: int, least: int = 1) -> int:
        return max(least, int(full * self.part))


WHOLE = Effort(rounds=7, part=1.0, rows=10_000_000)
QUICK = Effort(rounds=3, part=0.02, rows=20_000)


@dataclass(frozen=True)
class Target:
    """What a figure must reach."""

    bound: float
    at_least: bool = True
    unit: str = "×"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g} {self.unit}"


def at_most(bound: float, unit: str) -> Target:
    return Target(bound, at_least=False, unit=unit)


@dataclass(frozen=True)
class Figure:
    """A line of the final table. `reached` is what the target is about: a ratio, unless the unit says otherwise."""

    name: str
    ours: str
    beside: str = ""
    reached: float | None = None
    spread: tuple[float, float] | None = None
    target: Target | None = None
    unit: str = "×"  # of a figure without target

    @property
    def met(self) -> bool | None:
        if self.target is None or self.reached is None:
            return None
        return self.target.is_met(self.reached)


@dataclass(frozen=True)
class Table:
    """A table of its own, beside the figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Rates:
    """The operations a second of each side, round by round."""

    of: dict[str, list[float]]
    unit: str

    def ratio(self, name: str, ours: str, beside: str, target: Target | None = None) -> Figure:
        """The median over the rounds of ours ÷ beside within a round; more is faster."""
        ratios = [mine / other for mine, other in zip(self.of[ours], self.of[beside], strict=True)]
        spread = (min(ratios), max(ratios))
        return Figure(name, self.text(ours), self.text(beside), median(ratios), spread, target)

    def median(self, side: str) -> float:
        return median(self.of[side])

    def text(self, side: str) -> str:
        return f"{self.median(side):,.0f} {self.unit}"


def take_turns(rounds: int, unit: str, sides: Mapping[str, Turn]) -> Rates:
    """Let every side have one turn in each round. Each round begins with another side."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            rates[name].append(sides[name]())
    return Rates(rates, unit)


def seconds(action: Action, times: int = 1) -> float:
    begin = perf_counter()
    for _ in range(times):
        action()
    return perf_counter() - begin


def rate(action: Action, times: int) -> float:
    return times / seconds(action, times)


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
