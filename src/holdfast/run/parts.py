"""What a worker is made from, and what it says at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from msgspec import Struct

from ..clock import Clock
from ..context import Backing
from ..failure import ErrorTable
from ..store.protocol import Store
from .children import Spawn
from .handler import Handler, Middleware
from .queues import ServedQueue
from .scheduler import Scheduler


class WorkerOptions(Struct, frozen=True):
    """What a worker was told, checked by whoever made it. Times are seconds."""

    queues: tuple[ServedQueue, ...] | None = None
    concurrency: int = 10
    pool: int = 2
    lease: float = 60.0
    grace: float = 30.0
    until_idle: bool = False
    max_jobs: int | None = None
    max_memory: int | None = None


class Upkeep(Protocol):
    """What keeps the database small, a little at a time."""

    def do_some(self) -> float:
        """Returns the seconds until it wants to be asked again."""
        ...

    def end(self) -> None:
        """Let another do it."""
        ...


class Parts(Struct, frozen=True):
    """What a worker is built from."""

    store: Store
    clock: Clock
    handlers: Mapping[str, Handler]
    errors: ErrorTable
    random: Random
    middleware: Sequence[Middleware]
    backing: Backing
    spawn: Spawn
    scheduler: Scheduler
    upkeep: Upkeep
    retention: str | None
    """The program's policy, as JSON, if it has one."""


class WorkerReport(Struct, frozen=True):
    """What a worker did between its start and its end."""

    succeeded: int
    failed: int
    retried: int
    snoozed: int
    cancelled: int
    interrupted: int
    """Attempts that were still running when the time to finish was over, and went back without counting."""
    lost: int
    """Attempts that ended after another worker had taken the job over, or an operator had cancelled it."""
    stuck: int
    """Handlers that ran out of time and had not come back when the worker ended."""
