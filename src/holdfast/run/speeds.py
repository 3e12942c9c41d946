"""How long jobs take, as measured: what is short runs in a batch, and what is long is not taken before its time."""

from collections.abc import Iterable

from ..model import Settlement
from .attempt import Attempt

SHORT_SECONDS = 0.001
WORK_AHEAD_SECONDS = 0.05
UNKNOWN_SECONDS = 1.0
WEIGHT = 0.1  # of the newest measurement


class Speeds:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._mean = UNKNOWN_SECONDS

    def measure(self, batch: Iterable[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch:
            if attempt.began:
                took = (settlement.finished_at - attempt.started_at) / 1e6
                name = attempt.handler.name
                known = self._seconds.get(name)
                # One that was slow by chance, since the machine did something else, says little.
                self._seconds[name] = took if known is None else known + WEIGHT * (min(took, 10 * known) - known)
                if attempt.handler.kind != "process":
                    self._mean += WEIGHT * (took - self._mean)

    def is_short(self, attempt: Attempt) -> bool:
        return self._seconds.get(attempt.handler.name, UNKNOWN_SECONDS) < SHORT_SECONDS

    def ahead(self, runners: int) -> int:
        """How many jobs so many free runners do in the time that a job may wait after it was taken."""
        return int(runners * WORK_AHEAD_SECONDS / max(self._mean, 1e-6))
