"""What a part of the laboratory reports: what was hit how often, and what must not have happened."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
MAX_SHOWN = 10


class Report:
    """The result of one part.

    effort: how much to try. 1 is `make faults`, which takes minutes for each part; `make test` uses a small fraction.
    only: try only the case with this number, to replay a violation.
    piece: try only the k-th of n pieces of the cases: (k, n). The negative controls belong to the first.
    """

    def __init__(
        self,
        part: str,
        seed: int,
        effort: float,
        folder: Path,
        only: int | None = None,
        piece: tuple[int, int] = (1, 1),
    ) -> None:
        self.part, self.seed, self.effort, self.folder, self.only, self.piece = (
            part,
            seed,
            effort,
            folder,
            only,
            piece,
        )
        self.counters: Counter[str] = Counter()
        self.found: list[str] = []
        self.controls: list[str] = []
        self.required: dict[str, None] = {}
        self.seconds = 0.0

    def scaled(self, count: int, at_least: int = 1) -> int:
        """Return how many to try at this effort, of `count` at full effort."""
        return max(at_least, round(count * self.effort))

    def mine(self, cases: Sequence[T]) -> Sequence[T]:
        """Return the cases of this piece."""
        number, of = self.piece
        return cases[number - 1 :: of]

    @property
    def has_controls(self) -> bool:
        """Whether the negative controls are to be tried."""
        return self.only is None and self.piece[0] == 1

    def count(self, what: str, number: int = 1) -> None:
        """Count something that was hit."""
        self.counters[what] += number

    def violation(self, what: str, case: int | None = None) -> None:
        """Record something that must never happen. case: the number with which `--only` replays it."""
        self.found.append(f"{what} (--seed {self.seed}{'' if case is None else f' --only {case}'})")

    def control(self, what: str, caught: bool) -> None:
        """Record a negative control: a deliberate fault of Holdfast, or of the part, that the checks must catch."""
        self.controls.append(f"{what}: {'caught' if caught else 'NOT CAUGHT'}")
        if not caught:
            self.violation(f"negative control not caught: {what}")

    def require(self, *hit: str) -> None:
        """Require that each of these was counted: a run that hits nothing shows nothing."""
        self.required |= dict.fromkeys(hit)

    @property
    def violations(self) -> list[str]:
        """What must not have happened, and what never happened although it should; the latter of a whole run only."""
        if self.only is not None or self.piece[1] > 1:
            return self.found
        never = [what for what in self.required if not self.counters[what]]
        return [*self.found, *(f"never hit: {what} (--seed {self.seed})" for what in never)]

    def add(self, piece: dict[str, Any]) -> None:
        """Add what a piece of the same run has found, as `data` returned it."""
        self.counters.update(piece["counters"])
        self.found += piece["found"]
        self.controls += piece["controls"]
        self.require(*piece["required"])
        self.seconds += piece["seconds"]

    def data(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "counters": self.counters,
            "found": self.found,
            "controls": self.controls,
            "required": list(self.required),
            "seconds": self.seconds,
        }

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


def whole(part: str, seed: int, pieces: list[Path]) -> Report:
    """Put the pieces of a run together, each a file with its `data`."""
    report = Report(part, seed, 1.0, Path())
    for file in pieces:
        report.add(json.loads(file.read_text()))
    return report
