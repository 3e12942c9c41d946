"""Check a database without an app: it may be damaged, locked or outdated, and nothing is created or migrated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .. import validate
from ..clock import Clock, SystemClock
from ..errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.diagnosis import HealthMetrics
    from ..upkeep.doctor.check import Checkup


MIN_FREE_BYTES = 16 * 1024 * 1024  # the default of an app


def check_database(
    url: str,
    *,
    prefix: str,
    deep: bool = False,
    repair: bool = False,
    actor: str | None = None,
    reason: str = "",
    clock: Clock | None = None,
) -> Checkup:
    """Do what `app.check()` does. A repair opens the database as an app does."""
    from ..store.sqlite.diagnose import OfflineDatabase
    from ..upkeep.doctor.check import Checkup, most_severe_first
    from ..upkeep.doctor.doctor import diagnose, not_repaired, refuse_repair

    began, clock = time.monotonic(), clock or SystemClock()
    findings = diagnose(OfflineDatabase(url, validate.prefix(prefix), clock).diagnose(MIN_FREE_BYTES, deep))
    if not repair:
        return Checkup(findings, [], time.monotonic() - began)
    from .holdfast import Holdfast

    refusal = refuse_repair(findings)
    if refusal is None:
        try:
            with Holdfast(url, prefix=prefix, migrate=False, clock=clock) as app:
                return app.check(deep=deep, repair=True, actor=actor, reason=reason)
        except StoreError as error:
            refusal = not_repaired(str(error).rstrip("."))
    return Checkup(most_severe_first([*findings, refusal]), [], time.monotonic() - began)


def read_health_metrics(
    url: str, *, prefix: str, window: float, queues: Sequence[str] | None = None, clock: Clock | None = None
) -> HealthMetrics:
    """Return what a health check needs, of the last `window` seconds."""
    from ..store.sqlite.diagnose import OfflineDatabase
    from ..upkeep.doctor.doctor import since_minute

    clock = clock or SystemClock()
    database = OfflineDatabase(url, validate.prefix(prefix), clock)
    return database.health_metrics(since_minute(clock.now(), window), queues)
