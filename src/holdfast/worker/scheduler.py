"""The cron scheduler: enqueues the jobs of schedules that are due, once per occurrence across all workers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable

from ..clock import SECOND, Clock
from ..cron import NEVER, plan
from ..errors import StoreError
from ..failure import describe
from ..model.schedule import DueOccurrences, NewSchedule, ScheduleRecord
from ..store.protocol import Store

log = logging.getLogger("holdfast.cron")
BATCH_ROWS = 100  # schedules, in one transaction
MAX_BATCHES = 2  # in one step
MAX_FIRED = 1000  # jobs, in one step
CHECK_EVERY = 1 * SECOND


class Scheduler:
    """Fires the schedules of the tasks that this worker knows. declared: the schedules in the program's code."""

    def __init__(
        self, store: Store, clock: Clock, tasks: Collection[str], declared: Iterable[NewSchedule] = ()
    ) -> None:
        self._store, self._clock, self._tasks = store, clock, sorted(tasks)
        self._declared = {one.name: one for one in declared}
        self._bad: dict[str, int] = {}  # by name: the revision for which an error was logged
        self._checked_at = self._next_at = 0
        self._check_again_at = -1  # boot clock
        self._after = ""  # the name of the last schedule that was fired, while more are due

    def store_declared(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Store the declared schedules, when a worker starts. Unchanged ones stay as they are."""
        known: dict[str, ScheduleRecord] = {}
        while self._declared and (page := self._store.schedules.list(max(known, default=""))):
            known |= {one.name: one for one in page}
        for name, schedule in self._declared.items():
            if is_stopping():
                return
            if name not in known or not schedule.is_like(known[name]):
                self._store.schedules.put(schedule, self._store.actor)

    @property
    def has_more(self) -> bool:
        """Return whether the last call of `fire_due` has left schedules that are due."""
        return bool(self._after)

    def fire_due(self) -> float:
        """Enqueue the jobs that are due, up to about MAX_FIRED. Returns the seconds until the next call is due.

        That is 0 if there are more, and otherwise the time until the next occurrence, or infinity. Must be called at
        least once a second: the clock may be set, and other processes may add schedules.
        """
        now, boot_now = self._clock.now(), self._clock.boot_now()
        if self.has_more or boot_now >= self._check_again_at or not self._checked_at <= now < self._next_at:
            is_done, soonest = self._fire_some(now)
            if not is_done:
                return 0.0
            self._next_at = NEVER if soonest is None else soonest
            self._checked_at, self._check_again_at = now, boot_now + CHECK_EVERY
        return math.inf if self._next_at >= NEVER else max(0.0, (self._next_at - now) / SECOND)

    def _fire_some(self, now: int) -> tuple[bool, int | None]:
        """Fire the next due schedules, by name, each batch in one transaction. Returns whether this pass has ended,
        and the time of the next occurrence.
        """
        fired = 0
        while fired < MAX_FIRED:
            batch, soonest = self._store.schedules.due(
                self._tasks, list(self._declared), now, self._after, BATCH_ROWS
            )
            if not batch:
                self._after = ""
                return True, soonest
            due: list[tuple[ScheduleRecord, DueOccurrences]] = []
            for schedule in batch:
                self._after = schedule.name
                if (planned := self._plan(schedule)) is not None:
                    due.append((schedule, planned))
                    fired += len(planned.moments)
                if fired >= MAX_FIRED:
                    break
            self._fire_all(due)
            fired += MAX_FIRED // MAX_BATCHES
        return False, None

    def _plan(self, schedule: ScheduleRecord) -> DueOccurrences | None:
        # Read the clock after the row: otherwise an occurrence that another worker fired could look like a clock
        # that was set back.
        try:
            return plan(schedule, self._clock.now())
        except Exception as error:  # noqa: BLE001  the row was edited by hand; other schedules still fire
            self._note_bad(schedule, error)
            return None

    def _fire_all(self, due: list[tuple[ScheduleRecord, DueOccurrences]]) -> None:
        if not due:
            return
        try:
            ids = self._store.schedules.fire(due)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  the same, noticed only when its job was inserted
            if len(due) == 1:
                self._note_bad(due[0][0], error)
                return
            for one in due:
                self._fire_all([one])
        else:
            log.debug("schedules enqueued jobs %s", ids)

    def _note_bad(self, schedule: ScheduleRecord, error: Exception) -> None:
        if self._bad.get(schedule.name) != schedule.revision:
            self._bad[schedule.name] = schedule.revision
            log.error("schedule %r cannot fire until it is added again: %s", schedule.name, describe(error))
