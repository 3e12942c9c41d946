"""A database that may be in any state, looked over without an app: nothing is made, migrated or written.

An app opens its database to use it, and cannot open one that is damaged, locked, or of another version.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .. import validate
from ..clock import Clock, SystemClock
from ..errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.diagnosis import Vitals
    from ..upkeep.doctor.findings import Checkup


MIN_FREE_BYTES = 16 * 1024 * 1024  # what an app has by default


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
    """As `app.check()`. To repair, the database is opened as an app does."""
    from ..store.sqlite.diagnose import Patient
    from ..upkeep.doctor.doctor import diagnose, refuse_repair
    from ..upkeep.doctor.findings import Checkup, Finding, in_order

    began, time_source = time.monotonic(), clock or SystemClock()
    patient = Patient(url, validate.prefix(prefix), time_source)
    findings = diagnose(patient.examine(MIN_FREE_BYTES, deep))
    if not repair:
        return Checkup(findings, [], time.monotonic() - began)
    from .holdfast import Holdfast

    refusal = refuse_repair(findings)
    if refusal is None:
        try:
            with Holdfast(url, prefix=prefix, migrate=False, clock=time_source) as app:
                return app.check(deep=deep, repair=True, actor=actor, reason=reason)
        except StoreError as error:
            refusal = Finding("error", "NOT_REPAIRED", f"Nothing was repaired: {error}.")
    return Checkup(in_order([*findings, refusal]), [], time.monotonic() - began)


def vitals_of(
    url: str, *, prefix: str, window: float, queues: Sequence[str] | None = None, clock: Clock | None = None
) -> Vitals:
    """What a health check asks, of the last so many seconds."""
    from ..store.sqlite.diagnose import Patient
    from ..upkeep.doctor.health import since_minute

    time_source = clock or SystemClock()
    return Patient(url, validate.prefix(prefix), time_source).vitals(since_minute(time_source.now(), window), queues)
