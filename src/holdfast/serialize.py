"""Convert Holdfast's values to plain data for JSON. Everything that prints or serves JSON uses `to_data`.

Times become ISO 8601 text in UTC, durations become seconds. A Struct or dataclass becomes an object with its fields;
SHAPES lists the classes that are written differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from msgspec import Struct


class Shape(NamedTuple):
    """How objects of a class are written, where that is more or less than their fields."""

    fields: tuple[str, ...] = ()
    """The attributes to write. Empty: all fields of the Struct or dataclass."""
    extra: tuple[str, ...] = ()
    """Properties to write after the fields."""
    rename: Mapping[str, str] = {}


# By class name, which is unique in the package: this module lies below the modules that define the classes.
# Payloads and results are private: the shapes of Job and Schedule leave them out.
SHAPES = {
    "Job": Shape(
        ("id", "task", "queue", "status", "priority", "attempt", "max_attempts", "created_at", "run_at", "started_at",
         "finished_at", "timeout", "expires_at", "key", "tags", "worker", "error_code", "error_detail", "progress",
         "progress_text"),
    ),
    "Schedule": Shape(
        ("name", "cron", "tz", "task", "queue", "paused", "next_at", "last_at", "last_job_id", "missed", "source",
         "in_words"),
    ),
    "Blocker": Shape(("id", "task", "status", "chain_id", "holds", "error_code")),
    "BatchProgress": Shape(extra=("finished", "state")),
    "Explanation": Shape(rename={"job_id": "id"}),
    "TaskAttempts": Shape(extra=("jobs", "failure_rate", "keeps_failing")),
    "Checkup": Shape(("severity", "summary", "seconds", "repaired", "findings")),
    "PruneReport": Shape(extra=("jobs",)),
}  # fmt: skip


def to_data(value: Any, *, omit: Collection[str] = ()) -> Any:
    """Return the value as dicts, lists and scalars. omit: attributes of the outermost object to leave out."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(name): to_data(one) for name, one in value.items() if name not in omit}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_data(one) for one in value]
    if not type(value).__module__.startswith("holdfast."):
        return value
    shape = SHAPES.get(type(value).__name__, Shape())
    names = [name for name in (*(shape.fields or _fields(value)), *shape.extra) if name not in omit]
    return {shape.rename.get(name, name): to_data(getattr(value, name)) for name in names} if names else value


def iso(moment: datetime) -> str:
    """Return ISO 8601 text in UTC, always of the same length, so that times can be compared as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _fields(value: Any) -> tuple[str, ...]:
    if isinstance(value, Struct):
        return value.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else ()
