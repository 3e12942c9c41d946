"""Giving space back to the system: free pages, a few at a time, or by rewriting the whole file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep

from msgspec import Struct

from ..errors import CannotVacuum, DiskFull
from ..store.protocol import Store
from .pacing import LOCK_SECONDS, Courtesy

INCREMENTAL = 2
MOST_PAGES = 4096
FEW_PAGES = 32
PAGES_PER_CHECKPOINT = 4096
SLACK_PAGES, MOST_SLACK_PAGES = 1024, 16_384
"""So many free pages are not worth the trouble: the next jobs fill them."""
STEPS_BETWEEN = 20


class VacuumReport(Struct, frozen=True):
    """What `app.vacuum()` did."""

    full: bool
    before_bytes: int
    """Of the file."""
    after_bytes: int
    free_bytes: int
    """In the file, not given back."""
    held_bytes: int
    """Of the file: given back as soon as a read transaction ends that somebody has open now."""
    seconds: float


Progress = Callable[[int, int], None]


def shrinking(store: Store, leave: int = 0) -> Iterator[float]:
    """Give back all but so many free pages. Each step gives the seconds for which others had to wait."""
    since, left = 0, store.file.pages().free - leave
    while left > 0:
        try:
            some, taken = store.file.shrink(min(left, MOST_PAGES), LOCK_SECONDS)
            since += some
        except DiskFull:  # the log cannot grow: empty it, and go on with what is hardly more than nothing
            store.file.checkpoint()
            _, taken = store.file.shrink(min(left, FEW_PAGES), LOCK_SECONDS)
            since = PAGES_PER_CHECKPOINT
        if since >= PAGES_PER_CHECKPOINT:
            store.file.checkpoint()
            since = 0
        yield taken
        before, left = left, store.file.pages().free - leave
        if left >= before:  # others fill the file with free pages as fast, or SQLite cannot move what is there
            break
    store.file.checkpoint()  # only then does the file shrink


def shrinking_meanwhile(store: Store, steps: Iterator[float]) -> Iterator[float]:
    """Shrink the file between these steps, which free pages, and after them. For each page that is given back SQLite
    walks along the list of free pages: for all of them at the end, the time would grow by the square."""
    for number, seconds in enumerate(steps, start=1):
        yield seconds
        if number % STEPS_BETWEEN == 0:
            yield from _worth_shrinking(store)
    yield from _worth_shrinking(store)


def _worth_shrinking(store: Store) -> Iterator[float]:
    """Give back what is free beyond a tenth of the file."""
    pages = store.file.pages()
    slack = min(max(SLACK_PAGES, pages.count // 10), MOST_SLACK_PAGES)
    if pages.auto_vacuum == INCREMENTAL and pages.free > 2 * slack:
        yield from shrinking(store, slack)


def vacuum(store: Store, full: bool, hurry: bool, progress: Progress) -> VacuumReport:
    """progress: pages that are done, and pages in all."""
    begun, before = monotonic(), store.file.pages()
    if full:
        _write_anew(store, progress)
    elif before.auto_vacuum != INCREMENTAL:
        raise CannotVacuum(
            f"this file was not made to shrink in steps (its auto_vacuum is {before.auto_vacuum}): "
            "write it anew once, with 'holdfast vacuum --full' or app.vacuum(full=True)"
        )
    else:
        courtesy = Courtesy(store)
        for seconds in shrinking(store):
            progress(before.free - store.file.pages().free, before.free)
            if not hurry:
                sleep(courtesy.pause(seconds))
    after = store.file.pages()
    return VacuumReport(
        full=full,
        before_bytes=max(before.file_bytes, before.count * before.size),  # with what is in the log only
        after_bytes=after.file_bytes,
        free_bytes=after.free_bytes,
        held_bytes=after.held_bytes,
        seconds=monotonic() - begun,
    )


def _write_anew(store: Store, progress: Progress) -> None:
    at_work = [one for one in store.workers.list() if one.is_present]
    if at_work:
        pids = ", ".join(sorted({str(one.record.pid) for one in at_work}))
        raise CannotVacuum(
            f"{len(at_work)} worker{'s are' if len(at_work) > 1 else ' is'} at work (process {pids}), and nobody can "
            "write while the file is written anew: stop them first, or leave out --full"
        )
    store.file.vacuum(lambda: progress(0, 0))
    store.file.checkpoint()
