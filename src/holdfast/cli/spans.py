"""How long each attempt of a job waited and ran, from its history."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from ..app.jobs import HistoryEntry


class Span(NamedTuple):
    """A line of the history; of an attempt, with the seconds it waited before and ran."""

    entry: HistoryEntry
    wait: float | None = None
    run: float | None = None


def spans(history: Sequence[HistoryEntry]) -> list[Span]:
    found: list[Span] = []
    due: datetime | None = None  # since when the job could have been taken
    planned = False  # whether that was known before
    for entry in history:
        if entry.kind == "attempt":
            found.append(Span(entry, _seconds(due, entry.at), _run(entry)))
            continue
        found.append(Span(entry))
        run_at = entry.detail.get("run_at")
        if isinstance(run_at, datetime):
            due, planned = run_at, True
        elif entry.name == "promoted" and planned:  # it was due before somebody noticed
            planned = False
        elif entry.name != "claimed":
            due, planned = entry.at, False
    return found


def _run(entry: HistoryEntry) -> float | None:
    started = entry.detail.get("started_at")
    begun = started if isinstance(started, datetime) else entry.at
    return _seconds(begun, entry.detail.get("finished_at"))


def _seconds(start: datetime | None, end: object) -> float | None:
    if start is None or not isinstance(end, datetime):
        return None
    return max(0.0, (end - start).total_seconds())
