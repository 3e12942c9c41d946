"""From Criteria to a WHERE clause. Names are ours, values are bound."""

from typing import Any

from ...model import Criteria, Status
from ..statements import as_json

_FIELDS = ("queue", "task", "key", "error_code")
_RANGES = {
    "created_from": "created_at >= :created_from",
    "created_before": "created_at < :created_before",
    "finished_from": "finished_at >= :finished_from",
    "finished_before": "finished_at < :finished_before",
}


def where(criteria: Criteria, prefix: str) -> tuple[str, dict[str, Any]]:
    clauses, values = ["true"], dict[str, Any]()
    if criteria.status:
        # Written out, not bound: only so does the planner see which partial index serves.
        names = ", ".join(f"'{Status(status).value}'" for status in criteria.status)
        clauses.append(f"status = {names}" if len(criteria.status) == 1 else f"status IN ({names})")
    for field in _FIELDS:
        wanted = getattr(criteria, field)
        if len(wanted) == 1:
            clauses.append(f"{field} = :{field}")
            values[field] = wanted[0]
        elif wanted:
            clauses.append(f"{field} IN (SELECT value FROM json_each(:{field}))")  # noqa: S608
            values[field] = as_json(wanted)
    if criteria.tag:
        # Looked up for each job: as a list of ids it would have to be made in full first.
        clauses.append(
            f"EXISTS (SELECT 1 FROM {prefix}tags WHERE job_id = id AND tag IN (SELECT value FROM json_each(:tag)))"  # noqa: S608
        )
        values["tag"] = as_json(criteria.tag)
    for field, clause in _RANGES.items():
        if getattr(criteria, field) is not None:
            clauses.append(clause)
            values[field] = getattr(criteria, field)
    if criteria.ids is not None:
        clauses.append("id IN (SELECT value FROM json_each(:ids))")
        values["ids"] = as_json(criteria.ids)
    if criteria.roots:
        clauses.append("chain_id IS NULL")
    if criteria.chain_status:
        clauses.append(f"{_chain_status(prefix)} IN (SELECT value FROM json_each(:chain_status))")  # noqa: S608
        values["chain_status"] = as_json(criteria.chain_status)
    if criteria.messages is not None:
        clauses.append("task IS NULL" if criteria.messages else "task IS NOT NULL")
    return " AND ".join(clauses), values


def _chain_status(prefix: str) -> str:
    """Of a root: how its last job stands."""
    last = f"SELECT last.status FROM {prefix}jobs AS last WHERE last.chain_id = {prefix}jobs.id"  # noqa: S608
    return f"CASE WHEN continued THEN ({last} ORDER BY last.chain_index DESC LIMIT 1) ELSE status END"
