"""Pruning since somebody asked for it: from beginning to end, in this thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

from msgspec import Struct

from ..clock import Clock, as_datetime
from ..errors import AlreadyPruning, DiskFull
from ..retention import ENDED, Retention
from ..store.base import Store
from .archive import Archive
from .forecast import HOW, Forecast, PruneGroup
from .pace import Courtesy
from .prune import Run, TakenOver
from .vacuum import shrinking_meanwhile


class PruneReport(Struct, frozen=True):
    """What `app.prune()` deleted, or with dry_run would delete."""

    dry_run: bool
    succeeded: int
    failed: int
    cancelled: int
    batches: int
    minutes: int
    """Rows of rollups."""
    failures: int
    tracebacks: int
    audit: int
    """Events that belonged to no job."""
    blobs: int
    """Large payloads and results that no job refers to any more."""
    archived: int
    """Jobs that were written to the archive."""
    seconds: float
    retention: str
    """The rules, in words."""
    attempts: int | None = None
    """That go with their jobs; of a dry run only."""
    events: int | None = None
    groups: tuple[PruneGroup, ...] = ()
    """Of a dry run: the jobs by rule, status, queue and task, the most first."""
    estimate: str | None = None
    """How that was estimated which would go since the file is too large, if something would."""

    @property
    def jobs(self) -> int:
        return self.succeeded + self.failed + self.cancelled


class Order(Struct, frozen=True):
    """Who asks for it, and how."""

    actor: str
    reason: str = ""
    archive: str | os.PathLike[str] | None = None
    dry_run: bool = False
    hurry: bool = False


def prune(
    store: Store, clock: Clock, retention: Retention, order: Order, progress: Callable[[int], None]
) -> PruneReport:
    """progress: told how many jobs are gone by now, after every step."""
    begun = monotonic()
    with ExitStack() as stack:
        archive = order.archive or retention.archive
        opened = None if archive is None or order.dry_run else stack.enter_context(Archive(archive))
        forecast = Forecast(store, retention) if order.dry_run else None
        token = None if order.dry_run else _begin(store, retention, order)
        run = Run(
            store,
            clock,
            retention,
            lambda: token,
            archive=None if opened is None else lambda: opened,
            forecast=forecast,
        )
        courtesy = Courtesy(store)
        try:
            for seconds in _steps(store, run, shrinks=not order.dry_run):
                progress(_jobs(run))
                if not order.hurry:
                    sleep(courtesy.pause(seconds))
        except TakenOver:
            raise _already(store) from None
        except BaseException:
            if token is not None:
                store.end_upkeep(token, interrupted=True)
            raise
        if token is not None:
            store.end_upkeep(token, interrupted=False)
    counts: dict[str, Any] = {
        name: run.counts[name] for name in (*ENDED, "batches", "minutes", "failures", "tracebacks", "audit", "blobs")
    }
    return PruneReport(
        dry_run=order.dry_run,
        archived=run.archived,
        seconds=monotonic() - begun,
        retention=retention.in_words(),
        **counts,
        **({} if forecast is None else _foretold(forecast)),
    )


def _foretold(forecast: Forecast) -> dict[str, Any]:
    return {
        "attempts": forecast.attempts,
        "events": forecast.events,
        "groups": tuple(forecast.groups()),
        "estimate": HOW if forecast.is_estimate else None,
    }


def _steps(store: Store, run: Run, shrinks: bool) -> Iterator[float]:
    """On a full disk, where the log cannot grow, it is emptied, and they go on; for as long as that leads further."""
    while True:
        before = run.counts.total()
        try:
            yield from shrinking_meanwhile(store, run.steps()) if shrinks else run.steps()
            return
        except DiskFull:
            store.checkpoint()
            if not run.ease() and run.counts.total() == before:
                raise


def _begin(store: Store, retention: Retention, order: Order) -> str:
    note = {"retention": retention.in_words()}
    if order.reason:
        note["reason"] = order.reason
    if order.archive or retention.archive:
        note["archive"] = str(order.archive or retention.archive)
    token = store.begin_upkeep("operator", order.actor, note)
    if token is None:
        raise _already(store)
    return token


def _already(store: Store) -> AlreadyPruning:
    now = store.upkeep()
    who = "another process" if now.pid is None else f"{now.actor} (process {now.pid})"
    since = "" if now.begun_at is None else f" since {as_datetime(now.begun_at):%H:%M:%S} UTC"
    return AlreadyPruning(f"{who} prunes this database{since}: wait until it has ended, and try again")


def _jobs(run: Run) -> int:
    return sum(run.counts[status] for status in ENDED)
