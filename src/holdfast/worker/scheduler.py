"""Cron: what is due becomes jobs, each occurrence once, however many workers look."""

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
LOOK_EVERY = 1 * SECOND


class Scheduler:
    """Fires the schedules of tasks that this worker knows. `declared` are those of its own code."""

    def __init__(
        self, store: Store, clock: Clock, tasks: Collection[str], declared: Iterable[NewSchedule] = ()
    ) -> None:
        self._store, self._clock, self._tasks = store, clock, sorted(tasks)
        self._declared = {one.name: one for one in declared}
        self._bad: dict[str, int] = {}  # the revision that was complained of
        self._looked_at = self._next_at = 0
        self._look_again_at = -1  # on the boot clock

    def store_declared(self) -> None:
        """When a worker starts. One that is there already, and the same, stays as it is."""
        for schedule in self._declared.values():
            self._store.schedules.put(schedule, self._store.actor)

    def fire_due(self) -> float:
        """Enqueue what is due. Returns the seconds until the next occurrence; infinity if there is none.

        Call it as often as you like, and at least once a second: the clock may be set, and others may add schedules.
        """
        now, boot_now = self._clock.now(), self._clock.boot_now()
        if boot_now >= self._look_again_at or not self._looked_at <= now < self._next_at:
            found = self._fire_all(now)
            self._next_at = NEVER if found is None else found
            self._looked_at, self._look_again_at = now, boot_now + LOOK_EVERY
        return math.inf if self._next_at >= NEVER else max(0.0, (self._next_at - now) / SECOND)

    def _fire_all(self, now: int) -> int | None:
        """Returns the next occurrence."""
        after = ""
        while True:
            batch, soonest = self._store.schedules.due(self._tasks, list(self._declared), now, after, BATCH_ROWS)
            if not batch:
                return soonest
            for schedule in batch:
                self._fire(schedule)
            after = batch[-1].name

    def _fire(self, schedule: ScheduleRecord) -> None:
        # The clock is read after the row: another worker's step must not look like a clock that was set back.
        now = self._clock.now()
        try:
            what = plan(schedule, now)
        except InvalidInput as error:  # somebody has edited it by hand; the others go on
            if self._bad.get(schedule.name) != schedule.revision:
                self._bad[schedule.name] = schedule.revision
                log.error("schedule %r cannot fire until it is added again: %s", schedule.name, error)
            return
        for job_id in self._store.schedules.fire(schedule, what):
            log.debug("schedule %r enqueued job %d", schedule.name, job_id)
