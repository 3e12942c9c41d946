"""Bulk operations: one action on all jobs that match, which any process can continue."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .job import Criteria

BulkAction = Literal["retry", "cancel", "run_now", "delete"]
OperationState = Literal["running", "finished", "stopped", "failed"]
STATES_FOR: dict[BulkAction, tuple[str, ...]] = {
    "retry": ("failed", "cancelled"),
    "cancel": ("blocked", "scheduled", "ready", "running"),
    "run_now": ("scheduled",),
    "delete": ("blocked", "scheduled", "ready", "succeeded", "failed", "cancelled"),
}
"""The states in which jobs can be changed so."""


class NewOperation(Struct, frozen=True):
    action: BulkAction
    criteria: Criteria
    actor: str
    reason: str = ""
    delay: int = 0  # of retried jobs, in microseconds
    attempts: int | None = None  # of retried jobs; None: as many as at first
    matched: int = 0
    matched_all: bool = True


class OperationRecord(Struct, frozen=True):
    """An operation as it is stored. Times are microseconds."""

    id: int
    action: BulkAction
    criteria: str  # JSON
    actor: str
    reason: str
    delay: int
    attempts: int | None
    state: OperationState
    matched: int
    matched_all: bool
    changed: int
    position: int  # every job up to this id was looked at
    until: int  # the newest job when it was added
    runner: str | None
    error: str | None
    created_at: int
    updated_at: int
    finished_at: int | None
