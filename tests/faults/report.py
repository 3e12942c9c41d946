"""What a part of the laboratory reports: what was hit how often, and what must not have happened."""

from collections import Counter
from pathlib import Path

MAX_SHOWN = 10


class Report:
    """The result of one part.

    effort: how much to try. 1 is `make faults`, which takes minutes for each part; `make test` uses a small fraction.
    only: try only the case with this number, to replay a violation.
    """

    def __init__(self, part: str, seed: int, effort: float, folder: Path, only: int | None = None) -> None:
        self.part, self.seed, self.effort, self.folder, self.only = part, seed, effort, folder, only
        self.counters: Counter[str] = Counter()
        self.violations: list[str] = []
        self.controls: list[str] = []

    def scaled(self, count: int, at_least: int = 1) -> int:
        """Return how many to try at this effort, of `count` at full effort."""
        return max(at_least, round(count * self.effort))

    def count(self, what: str, number: int = 1) -> None:
        """Count something that was hit."""
        self.counters[what] += number

    def violation(self, what: str, case: int | None = None) -> None:
        """Record something that must never happen. case: the number with which `--only` replays it."""
        self.violations.append(f"{what} (--seed {self.seed}{'' if case is None else f' --only {case}'})")

    def control(self, what: str, caught: bool) -> None:
        """Record a negative control: a deliberate fault of Holdfast, or of the part, that the checks must catch."""
        self.controls.append(f"{what}: {'caught' if caught else 'NOT CAUGHT'}")
        if not caught:
            self.violation(f"negative control not caught: {what}")

    def require(self, *hit: str) -> None:
        """Require that each of these was counted: a run that hits nothing shows nothing."""
        for what in hit:
            if not self.counters[what]:
                self.violation(f"never hit: {what}")

    def lines(self) -> list[str]:
        """Return the report as text."""
        shown = ", ".join(f"{what}: {number:,}" for what, number in self.counters.items())
        found = [f"  VIOLATION {what}" for what in self.violations[:MAX_SHOWN]]
        if len(self.violations) > MAX_SHOWN:
            found.append(f"  … and {len(self.violations) - MAX_SHOWN} more")
        return [
            f"{self.part} (--seed {self.seed})",
            f"  {shown}",
            *(f"  negative control, {control}" for control in self.controls),
            f"  {len(self.violations)} violations",
            *found,
        ]
