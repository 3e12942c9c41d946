"""What a worker does by itself between jobs: it prunes, a little at a time, and gives space back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

from ..clock import Clock
from ..errors import ArchiveError, StoreError
from ..retention import Mark, Retention, read
from ..store.protocol import Store
from .archive import Archive
from .pacing import Courtesy
from .prune import Deleter, Run, TakenOver
from .vacuum import shrinking_meanwhile

log = logging.getLogger("holdfast.upkeep")


def in_force(store: Store, given: Retention | None) -> Retention | None:
    """None where this version cannot read the stored policy: then nothing is deleted."""
    if given is not None:
        return given
    stored = store.pruning.state().retention
    if stored is None:
        return Retention()
    found = read(stored)
    if found is None:
        log.warning("nothing is pruned: the rules in the database are of another version of Holdfast")
    return found


PASS_SECONDS = 60.0
FULL_PASS_SECONDS = 3600.0
AFTER_TROUBLE_SECONDS = 30.0
LOOK_SECONDS = 0.01
"""Between two steps that only read."""


class Caretaker:
    """One of all workers deletes at a time: the first that finds something begins a run, and the others wait."""

    def __init__(self, store: Store, clock: Clock, every: float = PASS_SECONDS) -> None:
        self._store, self._clock, self._every = store, clock, every
        self._run: Run | None = None
        self._deleter: Deleter | None = None
        self._steps: Iterator[float] | None = None
        self._courtesy: Courtesy
        self._archive: Archive | None = None
        self._reached: dict[str, Mark] = {}
        self._is_full = False
        self._followed: Retention | None = None
        self._next_at = self._full_at = monotonic()

    def do_some(self) -> float:
        """One step, if it is time for one. Returns the seconds until the next."""
        now = monotonic()
        if now < self._next_at:
            return self._next_at - now
        try:
            self._next_at = now + self._step(now)
        except StoreError:
            self._next_at = now + AFTER_TROUBLE_SECONDS
            self._steps = None  # what it began is ended the next time
            raise
        except ArchiveError as error:
            log.error("nothing is pruned: %s", error)
            self._finish(interrupted=True)
            self._next_at = now + AFTER_TROUBLE_SECONDS
        return self._next_at - now

    def end(self) -> None:
        """The worker stops: another may go on."""
        with suppress(StoreError):
            self._finish(interrupted=True)

    def _step(self, now: float) -> float:
        if self._steps is None:
            self._finish(interrupted=True)  # one that ran into an error
            return LOOK_SECONDS if self._start(now) else self._every
        try:
            return max(LOOK_SECONDS, self._courtesy.pause(next(self._steps)))
        except TakenOver:
            log.debug("another process prunes")
            self._finish(interrupted=True)
            return self._every
        except StopIteration:
            self._note_reached()
            self._finish(interrupted=False)
            return self._every

    def _start(self, now: float) -> bool:
        store = self._store
        retention = in_force(store, None)
        if retention is None or not retention.automatic:
            return False
        self._is_full = now >= self._full_at or retention != self._followed
        self._followed = retention
        if self._is_full:
            self._full_at = now + FULL_PASS_SECONDS
        path, note = retention.archive, {"retention": retention.in_words()}
        self._deleter = Deleter(
            store,
            lambda: store.pruning.begin("worker", store.actor, note),
            archive=None if path is None else lambda: self._open_archive(path),
        )
        run = self._run = Run(store, self._clock, retention, self._deleter)
        steps = run.steps(None if self._is_full else self._reached)
        self._steps, self._courtesy = shrinking_meanwhile(store, steps), Courtesy(store)
        return True

    def _open_archive(self, path: str) -> Archive:
        if self._archive is None:
            self._archive = Archive(path)
        return self._archive

    def _note_reached(self) -> None:
        """Up to there all was looked at: what could not go yet is looked at again in the next full pass."""
        assert self._run is not None
        self._reached = (self._reached if not self._is_full else {}) | self._run.reached

    def _finish(self, interrupted: bool) -> None:
        deleter, self._deleter, self._run, self._steps = self._deleter, None, None, None
        archive, self._archive = self._archive, None
        if archive is not None:
            archive.close()
        if deleter is not None:
            if deleter.counts.total():
                log.info("pruned %s", ", ".join(f"{n:,} {name}" for name, n in sorted(deleter.counts.items()) if n))
            deleter.end(interrupted)
