"""Background pruning: a worker prunes between jobs, one short step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

from ..clock import Clock
from ..errors import ArchiveError, StoreError
from ..retention import Position, Retention
from ..store.protocol import Store
from .prune import Deleter, PruneRun, TakenOver, effective_retention, log
from .throttle import Throttle
from .vacuum import shrink_meanwhile

PASS_SECONDS = 60.0
FULL_PASS_SECONDS = 3600.0
ERROR_SECONDS = 30.0
READ_SECONDS = 0.01
"""Between two steps that only read."""


class BackgroundPruner:
    """One worker prunes at a time: the first that finds something to delete takes the prune lock.

    A pass continues where the last one stopped. Once an hour, and after the policy changed, a full pass also looks
    again at jobs that could not be deleted before, and deletes expired rows.
    """

    def __init__(self, store: Store, clock: Clock, every: float = PASS_SECONDS) -> None:
        self._store, self._clock, self._every = store, clock, every
        self._run: PruneRun | None = None
        self._deleter: Deleter | None = None
        self._steps: Iterator[float] | None = None
        self._throttle: Throttle
        self._scanned: dict[str, Position] = {}
        self._is_full = False
        self._retention: Retention | None = None  # of the last pass
        self._next_at = self._full_at = monotonic()

    def do_some(self) -> float:
        """Do one step, if one is due. Return the seconds until the next."""
        now = monotonic()
        if now < self._next_at:
            return self._next_at - now
        try:
            self._next_at = now + self._step(now)
        except StoreError:
            self._next_at = now + ERROR_SECONDS
            self._steps = None  # the next step ends the run
            raise
        except ArchiveError as error:
            log.error("pruning failed: %s", error)
            self._finish(interrupted=True)
            self._next_at = now + ERROR_SECONDS
        return self._next_at - now

    def end(self) -> None:
        """Release the prune lock when the worker stops."""
        with suppress(StoreError):
            self._finish(interrupted=True)

    def _step(self, now: float) -> float:
        if self._steps is None:
            self._finish(interrupted=True)  # a run that failed
            return READ_SECONDS if self._start(now) else self._every
        try:
            return max(READ_SECONDS, self._throttle.pause(next(self._steps)))
        except TakenOver:
            log.debug("another process is pruning")
            self._finish(interrupted=True)
        except StopIteration:
            assert self._run is not None
            self._scanned = (self._scanned if not self._is_full else {}) | self._run.scanned
            self._finish(interrupted=False)
        return self._every

    def _start(self, now: float) -> bool:
        store, retention = self._store, effective_retention(self._store, None)
        if retention is None or not retention.automatic:
            return False
        self._is_full = now >= self._full_at or retention != self._retention
        self._retention = retention
        if self._is_full:
            self._full_at = now + FULL_PASS_SECONDS
        note = {"retention": retention.in_words()}
        self._deleter = Deleter(store, "worker", store.actor, note, retention.archive)
        self._run = PruneRun(store, self._clock, retention, self._deleter)
        self._steps = shrink_meanwhile(store, self._run.steps(None if self._is_full else self._scanned))
        self._throttle = Throttle(store)
        return True

    def _finish(self, interrupted: bool) -> None:
        deleter, self._deleter, self._run, self._steps = self._deleter, None, None, None
        if deleter is not None:
            if deleter.counts.total():
                log.info("pruned %s", ", ".join(f"{n:,} {name}" for name, n in sorted(deleter.counts.items()) if n))
            deleter.end(interrupted)
