"""A job's attempts and events as one timeline."""

from typing import Any

import msgspec

from ...model import TimelineEntry


def timeline(events: list[Any], attempts: list[Any]) -> list[TimelineEntry]:
    """In the order in which things happened; an attempt stands right after the event of its claim."""
    spans = {row[0]: _attempt(row) for row in attempts}
    entries: list[TimelineEntry] = []
    for at, event, attempt, actor, detail in events:
        entries.append(TimelineEntry(at, "event", event, attempt or 0, actor, read_detail(detail)))
        if event == "claimed" and attempt in spans:
            entries.append(spans.pop(attempt))
    return entries + list(spans.values())  # what is left was made by hand, without its event


def _attempt(row: tuple[Any, ...]) -> TimelineEntry:
    attempt, worker, claimed_at, started_at, finished_at, outcome, code, error_detail, fingerprint = row
    known = {
        "started_at": started_at,
        "finished_at": finished_at,
        "error_code": code,
        "error_detail": error_detail,
        "fingerprint": fingerprint,
    }
    detail = {name: value for name, value in known.items() if value is not None}
    return TimelineEntry(claimed_at, "attempt", outcome or "running", attempt, worker, detail)


def read_detail(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:  # written by hand, or around a strange error code
        return {"text": text}
