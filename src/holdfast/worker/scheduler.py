"""The cron scheduler: enqueues the jobs of schedules that are due, once per occurrence across all workers."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable

from ..clock import SECOND, Clock
from ..cron import NEVER, plan
from ..errors import InvalidInput
from ..model.schedule import NewSchedule, ScheduleRecord
from ..store.protocol import Store

log = logging.getLogger("holdfast.cron")
BATCH_ROWS = 100
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

    def store_declared(self) -> None:
        """Store the declared schedules, when a worker starts. Unchanged ones stay as they are."""
        for schedule in self._declared.values():
            self._store.schedules.put(schedule, self._store.actor)

    def fire_due(self) -> float:
        """Enqueue the jobs that are due. Returns the seconds until the next occurrence, or infinity.

        Must be called at least once a second: the clock may be set, and other processes may add schedules.
        """
        now, boot_now = self._clock.now(), self._clock.boot_now()
        if boot_now >= self._check_again_at or not self._checked_at <= now < self._next_at:
            found = self._fire_all(now)
            self._next_at = NEVER if found is None else found
            self._checked_at, self._check_again_at = now, boot_now + CHECK_EVERY
        return math.inf if self._next_at >= NEVER else max(0.0, (self._next_at - now) / SECOND)

    def _fire_all(self, now: int) -> int | None:
        """Fire all due schedules. Returns the time of the next occurrence."""
        after = ""
        while True:
            batch, soonest = self._store.schedules.due(self._tasks, list(self._declared), now, after, BATCH_ROWS)
            if not batch:
                return soonest
            for schedule in batch:
                self._fire(schedule)
            after = batch[-1].name

    def _fire(self, schedule: ScheduleRecord) -> None:
        # Read the clock after the row: otherwise an occurrence that another worker fired could look like a clock
        # that was set back.
        now = self._clock.now()
        try:
            step = plan(schedule, now)
        except InvalidInput as error:  # the row was edited by hand; other schedules still fire
            if self._bad.get(schedule.name) != schedule.revision:
                self._bad[schedule.name] = schedule.revision
                log.error("schedule %r cannot fire until it is added again: %s", schedule.name, error)
            return
        for job_id in self._store.schedules.fire(schedule, step):
            log.debug("schedule %r enqueued job %d", schedule.name, job_id)
