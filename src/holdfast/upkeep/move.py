"""Move everything from one database to another, and take the source out of service.

1. The history of jobs that have ended is copied in chunks while work goes on.
2. The workers of the source are asked to stop, and running jobs have some time to finish.
3. In one transaction, while no other connection can write to the source: jobs that still run are given back, the rest
   is copied, both sides are compared, and the source is marked. It refuses writes from then on.
4. The destination is taken into service.

If the move is interrupted before the third step has ended, the source stays as it was. The next move continues there.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import Literal

from msgspec import Struct

from ..errors import CannotMove, DatabaseMoved
from ..store.move import TABLES, Copier, Rows
from ..store.protocol import Store

POLL_SECONDS = 0.1
Stage = Literal["history", "running", "rest", "comparing"]


class MoveProgress(Struct, frozen=True):
    stage: Stage
    done: int
    """Rows of this stage so far."""
    total: int | None
    """About how many there are; None: unknown."""


class MoveReport(Struct, frozen=True):
    """What `app.move()` did; with dry_run, what it would do."""

    source: str
    destination: str
    dry_run: bool
    rows: dict[str, int]
    """By table. With dry_run: about how many jobs and events there are."""
    running: int
    """With dry_run: how many jobs run now."""
    seconds: float
    paused_seconds: float
    """For how long the source could not be written."""


Tell = Callable[[MoveProgress], None]


def move(
    source: Store, destination: Store, *, dry_run: bool, wait: float, signed: tuple[str, str], tell: Tell
) -> MoveReport:
    """wait: seconds that running jobs have to finish, before they are given back. signed: who moves it, and why."""
    started = monotonic()
    here, there = source.side, destination.side
    if here.place == there.place:
        raise CannotMove(f"source and destination are the same database, {here.place}: name another destination")
    moved_to, filling = here.meta("moved_to"), there.meta("moving_from")
    if moved_to is not None:
        if moved_to == there.place and filling == here.place:  # killed before the last step
            there.end_filling()
            return MoveReport(here.place, there.place, dry_run, {}, 0, monotonic() - started, 0.0)
        raise DatabaseMoved(f"this database was moved to {moved_to}: use that one")
    if there.meta("moved_to") is not None:
        raise CannotMove(
            f"the destination {there.place} was itself moved to {there.meta('moved_to')}: choose an empty database"
        )
    if filling != here.place and (filling is not None or not there.is_empty()):
        raise CannotMove(
            f"the destination {there.place} "
            + ("has jobs already" if filling is None else f"is being filled from {filling}")
            + ": choose an empty database"
        )
    there.require_later_events(here.last_event())
    jobs, events = here.sizes()
    if dry_run:
        rows = {"jobs": jobs, "events": events}
        return MoveReport(here.place, there.place, True, rows, here.count_running(), monotonic() - started, 0.0)
    run = _Move(source, destination, jobs + events, tell)
    rows, paused = run.all(wait, *signed)
    return MoveReport(here.place, there.place, False, rows, 0, monotonic() - started, paused)


class _Move:
    def __init__(self, source: Store, destination: Store, total: int, tell: Tell) -> None:
        self._store, self._here, self._there = source, source.side, destination.side
        self._total, self._tell = total, tell
        self._stage: Stage = "history"
        self._stage_total: int | None = None
        self._done = 0
        self._copier = Copier(self._here, self._there, self._tick)

    def all(self, wait: float, actor: str, reason: str) -> tuple[dict[str, int], float]:
        self._there.begin_filling(self._here)
        self._copier.forget_unsettled()
        self._begin("history", self._total)
        for table in self._here.history():
            self._copier.copy(table, self._here.rows)
        self._copier.copy_blobs(self._here.rows)
        self._let_end(wait, actor, reason)
        locked = monotonic()
        rows = self._here.hand_over(self._there, actor, reason, self._copy_rest)
        paused = monotonic() - locked
        self._there.end_filling()
        return rows, paused

    def _let_end(self, wait: float, actor: str, reason: str) -> None:
        """Ask the workers to stop, and wait until none is left and no job runs, or until the time is up."""
        self._begin("running", None)
        for one in self._store.workers.list():
            if one.is_present:
                self._store.workers.request_stop(one.record.id, actor, reason or "the database is being moved")
        until = monotonic() + wait
        while monotonic() < until and (self._here.count_running() or self._has_workers()):
            self._tick(0)
            sleep(POLL_SECONDS)

    def _has_workers(self) -> bool:
        return any(one.is_present for one in self._store.workers.list())

    def _copy_rest(self, read: Rows, highest: dict[str, int]) -> dict[str, int]:
        self._begin("rest", self._total)
        rows = {table.name: self._copier.copy(table, read, compare=True) for table in TABLES}
        self._copier.copy_blobs(read)
        self._begin("comparing", None)
        for table in TABLES:
            self._copier.require_count(table, rows[table.name])
        self._there.require_later_events(self._here.last_event(read))  # again, since work went on
        self._there.continue_ids(highest)
        return rows

    def _begin(self, stage: Stage, total: int | None) -> None:
        self._stage, self._stage_total, self._done = stage, total, 0
        self._tick(0)

    def _tick(self, rows: int) -> None:
        self._done += rows
        self._tell(MoveProgress(self._stage, self._done, self._stage_total))
