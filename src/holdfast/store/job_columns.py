"""The columns of a new job, for all statements that insert one."""

from operator import attrgetter
from typing import Any

from ..model.job import NewJob

# Fields of NewJob that are not stored as they are. Every other field is a column of the same name.
_OTHER_FIELDS = (
    "args", "delay", "run_at", "expires", "expires_at", "key_window", "on_conflict", "actor", "links",
)  # fmt: skip
PLAIN_COLUMNS = tuple(field for field in NewJob.__struct_fields__ if field not in _OTHER_FIELDS)
COLUMNS = (
    "args", *PLAIN_COLUMNS, "status", "run_at", "created_at", "actor", "on_blocker_failure", "batch_id", "external",
    "expires_at", "chain_id", "chain_index",
)  # fmt: skip
ROW = f"({', '.join('?' * len(COLUMNS))})"
_plain_values = attrgetter(*PLAIN_COLUMNS)


def statement(text: str) -> str:
    """Return the statement with the columns and parameter marks filled in."""
    marks = ", ".join("?" * len(COLUMNS))
    text = text.replace("{columns}", ", ".join(COLUMNS)).replace("{values}", marks)
    return text.replace("{other_values}", marks.removeprefix("?, "))


def values(
    job: NewJob, now: int, actor: str, chain_id: int | None = None, chain_index: int = 0, batch_id: int | None = None
) -> tuple[Any, ...]:
    """Return the values in the order of COLUMNS. chain_id, chain_index, batch_id: of a continuation."""
    links = job.links
    policy, external = None, False
    if links is not None:
        policy = None if links.on_blocker_failure == "hold" else links.on_blocker_failure
        external = links.external
        batch_id = links.batch_id if batch_id is None else batch_id
    return (
        job.args,
        *_plain_values(job),
        job.first_status(now).value,
        job.due(now),
        now,
        job.actor or actor,
        policy,
        batch_id,
        external,
        job.expires_at if job.expires is None else now + job.expires,
        chain_id,
        chain_index,
    )
