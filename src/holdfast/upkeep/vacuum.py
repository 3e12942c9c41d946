"""Vacuum: return free pages to the file system, a few at a time or by rewriting the file. On a server: VACUUM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, sleep

from msgspec import Struct

from ..errors import CannotVacuum, DiskFull
from ..store.protocol import Store
from .throttle import LOCK_SECONDS, Throttle

INCREMENTAL = 2  # PRAGMA auto_vacuum
MAX_PAGES = 4096
MIN_PAGES = 32  # when the disk is full
PAGES_PER_CHECKPOINT = 4096
SLACK_PAGES, MAX_SLACK_PAGES = 1024, 16_384
"""Free pages that are left in the file: new jobs fill them."""
STEPS_BETWEEN = 20


class VacuumReport(Struct, frozen=True):
    """What `app.vacuum()` did."""

    full: bool
    before_bytes: int
    """Size of the file."""
    after_bytes: int
    free_bytes: int
    """Free space that is still in the file."""
    held_bytes: int
    """Space that is returned as soon as an open read transaction ends."""
    seconds: float


Progress = Callable[[int, int], None]


def shrink(store: Store, leave: int = 0) -> Iterator[float]:
    """Return all but this many free pages. Each step yields the seconds with the write lock."""
    since_checkpoint, left = 0, store.file.pages().free - leave
    while left > 0:
        try:
            pages, seconds = store.file.shrink(min(left, MAX_PAGES), LOCK_SECONDS)
            since_checkpoint += pages
        except DiskFull:  # the write-ahead log cannot grow: empty it, and continue with very small steps
            store.file.checkpoint()
            _, seconds = store.file.shrink(min(left, MIN_PAGES), LOCK_SECONDS)
            since_checkpoint = PAGES_PER_CHECKPOINT
        if since_checkpoint >= PAGES_PER_CHECKPOINT:
            store.file.checkpoint()
            since_checkpoint = 0
        yield seconds
        before, left = left, store.file.pages().free - leave
        if left >= before:  # other processes free pages as fast, or SQLite cannot move the remaining ones
            break
    store.file.checkpoint()  # the file shrinks only here


def shrink_meanwhile(store: Store, steps: Iterator[float]) -> Iterator[float]:
    """Run steps that free pages, and shrink the file between and after them.

    For each page that it returns, SQLite walks the list of free pages: with all of them at the end, the time would be
    quadratic.
    """
    for number, seconds in enumerate(steps, start=1):
        yield seconds
        if number % STEPS_BETWEEN == 0:
            yield from _shrink_if_worthwhile(store)
    yield from _shrink_if_worthwhile(store)


def _shrink_if_worthwhile(store: Store) -> Iterator[float]:
    """Return free pages beyond a tenth of the file."""
    pages = store.file.pages()
    slack = min(max(SLACK_PAGES, pages.count // 10), MAX_SLACK_PAGES)
    if pages.auto_vacuum == INCREMENTAL and pages.free > 2 * slack:
        yield from shrink(store, slack)


def vacuum(store: Store, full: bool, hurry: bool, progress: Progress, limit: float | None = None) -> VacuumReport:
    """progress: called with the pages done and the pages in total. limit: stop after about this many seconds."""
    started, before = monotonic(), store.file.pages()
    if full:
        _rewrite(store, progress)
    elif not store.file.shrinks_in_steps:
        _vacuum_tables(store, progress, limit)
    elif before.auto_vacuum != INCREMENTAL:
        raise CannotVacuum(
            f"this file cannot shrink in steps (auto_vacuum must be {INCREMENTAL}, got {before.auto_vacuum}): "
            "rewrite it once with 'holdfast vacuum --full' or app.vacuum(full=True)"
        )
    else:
        throttle = Throttle(store)
        for seconds in shrink(store):
            progress(before.free - store.file.pages().free, before.free)
            if limit is not None and monotonic() - started >= limit:
                store.file.checkpoint()  # the file shrinks only here
                break
            if not hurry:
                sleep(throttle.pause(seconds))
    after = store.file.pages()
    return VacuumReport(
        full=full,
        before_bytes=max(before.file_bytes, before.count * before.size),  # includes pages that are only in the log
        after_bytes=after.file_bytes,
        free_bytes=after.free_bytes,
        held_bytes=after.held_bytes,
        seconds=monotonic() - started,
    )


class _TimeIsUp(Exception):
    """The limit is reached between two tables."""


def _vacuum_tables(store: Store, progress: Progress, limit: float | None) -> None:
    """Let the server remove dead rows of one table after the other. Others may use them meanwhile."""
    started = monotonic()

    def tick() -> None:
        progress(0, 0)
        if limit is not None and monotonic() - started >= limit:
            raise _TimeIsUp

    with suppress(_TimeIsUp):
        store.file.vacuum(tick, full=False)


def _rewrite(store: Store, progress: Progress) -> None:
    active = [one for one in store.workers.list() if one.is_present]
    if active:
        pids = ", ".join(sorted({str(one.record.pid) for one in active}))
        workers = "1 worker is" if len(active) == 1 else f"{len(active)} workers are"
        raise CannotVacuum(
            f"{workers} running (process {pids}), and a full vacuum blocks all writers: stop them first, "
            "or leave out --full"
        )
    store.file.vacuum(lambda: progress(0, 0))
    store.file.checkpoint()
