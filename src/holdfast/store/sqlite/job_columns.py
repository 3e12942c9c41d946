"""The columns of a new job, in one place for all statements that insert one."""

from typing import Any

from ...model.job import NewJob

COLUMNS = (
    "args", "queue", "task", "status", "priority", "run_at", "created_at", "max_attempts", "timeout", "key", "tags",
    "history", "trace", "actor", "args_blob", "on_blocker_failure", "batch_id", "external", "timeout_at", "chain_id",
    "chain_index",
)  # fmt: skip
ROW = f"({', '.join('?' * len(COLUMNS))})"


def statement(text: str) -> str:
    """Put the columns into a statement."""
    marks = ", ".join("?" * len(COLUMNS))
    text = text.replace("{columns}", ", ".join(COLUMNS)).replace("{values}", marks)
    return text.replace("{other_values}", marks.removeprefix("?, "))


def values(
    job: NewJob, now: int, actor: str, chain_id: int | None = None, chain_index: int = 0, batch_id: int | None = None
) -> tuple[Any, ...]:
    """In the order of the columns. chain_id, chain_index, batch_id: of a continuation."""
    links = job.links
    policy, external, timeout_at = None, False, None
    if links is not None:
        policy = None if links.on_blocker_failure == "hold" else links.on_blocker_failure
        external, timeout_at = links.external, links.timeout_at
        batch_id = links.batch_id if batch_id is None else batch_id
    return (
        job.args,
        job.queue,
        job.task,
        job.first_status(now).value,
        job.priority,
        job.due(now),
        now,
        job.max_attempts,
        job.timeout,
        job.key,
        job.tags,
        job.history,
        job.trace,
        job.actor or actor,
        job.args_blob,
        policy,
        batch_id,
        external,
        timeout_at,
        chain_id,
        chain_index,
    )
