"""`app.prune()`: a run that an operator asks for, from beginning to end in this thread."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

from msgspec import Struct

from ..clock import Clock, as_datetime
from ..errors import AlreadyPruning, DiskFull
from ..retention import ENDED, Retention
from ..store.protocol import Store
from .archive import Archive
from .dry_run import HOW, Forecast, PruneGroup
from .pacing import Courtesy
from .prune import MOST_ROWS, Deleter, Run, TakenOver
from .vacuum import shrinking_meanwhile

COUNTED = (*ENDED, "batches", "minutes", "failures", "tracebacks", "audit", "blobs")


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


class PruneOrder(Struct, frozen=True):
    """Who asks for it, and how."""

    actor: str
    reason: str = ""
    archive: str | os.PathLike[str] | None = None
    dry_run: bool = False
    hurry: bool = False


def prune(
    store: Store, clock: Clock, retention: Retention, order: PruneOrder, progress: Callable[[int], None]
) -> PruneReport:
    """progress: called after every step with the number of jobs that are gone."""
    begun = monotonic()
    with ExitStack() as stack:
        path = order.archive or retention.archive
        archive = None if path is None or order.dry_run else stack.enter_context(Archive(path))
        target = Forecast(store, retention) if order.dry_run else _deleter(store, retention, order, archive)
        run = Run(store, clock, retention, target, rows=MOST_ROWS if order.dry_run else None)
        courtesy = Courtesy(store)
        try:
            for seconds in run.steps() if order.dry_run else _steps(store, run, target.counts):
                progress(sum(target.counts[status] for status in ENDED))
                if not order.hurry:
                    sleep(courtesy.pause(seconds))
        except TakenOver:
            raise _already(store) from None
        except BaseException:
            _end(target, interrupted=True)
            raise
        _end(target, interrupted=False)
    found: dict[str, Any] = {name: target.counts[name] for name in COUNTED}
    if isinstance(target, Forecast):
        found |= _foretold(target)
    return PruneReport(
        dry_run=order.dry_run,
        archived=target.archived,
        seconds=monotonic() - begun,
        retention=retention.in_words(),
        **found,
    )


def _deleter(store: Store, retention: Retention, order: PruneOrder, archive: Archive | None) -> Deleter:
    """It has the token: a run that an operator asks for is in the log, also if it deletes nothing."""
    deleter = Deleter(
        store, lambda: _begin(store, retention, order), archive=None if archive is None else lambda: archive
    )
    deleter.begin()
    return deleter


def _end(target: Deleter | Forecast, interrupted: bool) -> None:
    if isinstance(target, Deleter):
        target.end(interrupted)
    elif not interrupted:
        target.count_rest()


def _foretold(forecast: Forecast) -> dict[str, Any]:
    return {
        "attempts": forecast.attempts,
        "events": forecast.events,
        "groups": tuple(forecast.groups()),
        "estimate": HOW if forecast.is_estimate else None,
    }


def _steps(store: Store, run: Run, counts: Counter[str]) -> Iterator[float]:
    """On a full disk, where the write-ahead log cannot grow, empty it and go on, for as long as that helps."""
    while True:
        before = counts.total()
        try:
            yield from shrinking_meanwhile(store, run.steps())
            return
        except DiskFull:
            store.file.checkpoint()
            if not run.ease() and counts.total() == before:
                raise


def _begin(store: Store, retention: Retention, order: PruneOrder) -> str:
    note = {"retention": retention.in_words()}
    if order.reason:
        note["reason"] = order.reason
    if order.archive or retention.archive:
        note["archive"] = str(order.archive or retention.archive)
    token = store.pruning.begin("operator", order.actor, note)
    if token is None:
        raise _already(store)
    return token


def _already(store: Store) -> AlreadyPruning:
    now = store.pruning.state()
    who = "another process" if now.pid is None else f"{now.actor} (process {now.pid})"
    since = "" if now.begun_at is None else f" since {as_datetime(now.begun_at):%H:%M:%S} UTC"
    return AlreadyPruning(f"{who} prunes this database{since}: wait until it has ended, and try again")
