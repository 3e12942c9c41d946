"""Measuring two things in turns, so that whatever ails the machine ails both."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

Action = Callable[[], object]

WARM_UP_BLOCK = 50
LONGEST_WARM_UP = 50_000


@dataclass(frozen=True)
class Effort:
    """How much of everything: all of it, or a little to see that it works."""

    rounds: int
    part: float

    def of(self, full: int, least: int = 1) -> int:
        return max(least, int(full * self.part))


WHOLE = Effort(rounds=9, part=1.0)
QUICK = Effort(rounds=3, part=0.02)


@dataclass(frozen=True)
class Target:
    """What a figure must reach."""

    bound: float
    at_least: bool = True
    unit: str = "×"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"


@dataclass(frozen=True)
class Figure:
    """A line of the table. `value` is what the target is about: a ratio, if not said otherwise by its unit."""

    name: str
    floor: str
    ours: str
    value: float | None = None
    spread: tuple[float, float] | None = None
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None or self.value is None:
            return None
        return self.target.is_met(self.value)


@dataclass(frozen=True)
class Contest:
    """The seconds that each side took, round by round."""

    floor: list[float]
    ours: list[float]

    def speed_ratios(self) -> list[float]:
        """Ours to the floor within each round; more is faster."""
        return [floor / ours for floor, ours in zip(self.floor, self.ours, strict=True)]

    def slowdowns(self) -> list[float]:
        return [ours / floor for floor, ours in zip(self.floor, self.ours, strict=True)]

    def as_speed(self, name: str, operations: int, unit: str, target: Target | None = None) -> Figure:
        ratios = self.speed_ratios()
        return Figure(
            name,
            floor=f"{operations / median(self.floor):,.0f} {unit}",
            ours=f"{operations / median(self.ours):,.0f} {unit}",
            value=median(ratios),
            spread=(min(ratios), max(ratios)),
            target=target,
        )

    def as_slowdown(self, name: str, operations: int, target: Target | None = None) -> Figure:
        ratios = self.slowdowns()
        return Figure(
            name,
            floor=f"{median(self.floor) / operations * 1e6:,.1f} µs",
            ours=f"{median(self.ours) / operations * 1e6:,.1f} µs",
            value=median(ratios),
            spread=(min(ratios), max(ratios)),
            target=target,
        )


def take_turns(rounds: int, floor: Callable[[], float], ours: Callable[[], float]) -> Contest:
    """Floor, ours, floor, ours, …: each gives the seconds it took. Every second round begins with ours."""
    contest = Contest([], [])
    for number in range(rounds):
        if number % 2 == 0:
            contest.floor.append(floor())
            contest.ours.append(ours())
        else:
            contest.ours.append(ours())
            contest.floor.append(floor())
    return contest


def seconds(action: Action, times: int) -> float:
    begin = perf_counter()
    for _ in range(times):
        action()
    return perf_counter() - begin


def warm_up(send: Action, database: Path) -> None:
    """Send until the write-ahead log has been started anew, which shows in its no longer growing."""
    log = Path(f"{database}-wal")
    size = -1
    for _ in range(0, LONGEST_WARM_UP, WARM_UP_BLOCK):
        seconds(send, WARM_UP_BLOCK)
        before, size = size, log.stat().st_size
        if size == before:
            return
    raise RuntimeError(f"the log still grew after {LONGEST_WARM_UP:,} sends: nobody checkpoints it")


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
