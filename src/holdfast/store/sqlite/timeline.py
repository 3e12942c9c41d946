"""A job's attempts and events as one timeline."""

from typing import Any

import msgspec

from ...model import TimelineEntry
from ...observations import EventRecord

EVENT_COLUMNS = "id, job_id, at, event, attempt, actor, old_status, new_status, run_at, error_code, reason, detail"
# Events whose states go without saying.
PLAIN = frozenset({"enqueued", "claimed", "succeeded", "removed"})


def event_record(
    id: int, job_id: int | None, at: int, event: str, attempt: int | None, actor: str | None, *rest: Any
) -> EventRecord:
    return EventRecord(id, job_id, at, event, attempt, actor, _detail(event, *rest))


def timeline(events: list[EventRecord], attempts: list[Any]) -> list[TimelineEntry]:
    """In the order in which things happened; an attempt stands right after the event of its claim."""
    spans = {row[0]: _attempt(row) for row in attempts}
    entries: list[TimelineEntry] = []
    for one in events:
        entries.append(TimelineEntry(one.at, "event", one.event, one.attempt or 0, one.actor, one.detail))
        if one.event == "claimed" and one.attempt in spans:
            entries.append(spans.pop(one.attempt))
    return entries + list(spans.values())  # what is left was inserted by hand, without its event


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
    return TimelineEntry(claimed_at or 0, "attempt", outcome or "running", attempt, worker, detail)


def _detail(
    event: str,
    old: str | None,
    new: str | None,
    run_at: int | None,
    error_code: str | None,
    reason: str | None,
    text: str | None,
) -> dict[str, Any]:
    if text is not None:
        return read_detail(text)
    detail: dict[str, Any] = {} if event in PLAIN else {"from": old, "to": new, "run_at": run_at}
    detail |= {"error_code": error_code, "reason": reason}
    return {name: value for name, value in detail.items() if value is not None}


def read_detail(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:  # inserted by hand
        return {"text": text}
