"""Remember where ready jobs begin in their index, so that a claim does not pass the entries of earlier claims again.

A claim leaves a dead entry in the index. VACUUM removes it, or a later search marks it, but not while any snapshot of
the server is older: a long query or a dump somewhere keeps all of them at the head of the index. So while a backlog
lasts, a worker looks from the start only now and then, and claims from where its last claim has ended. What comes
back, commits late, has a new priority, is due, has expired or has to be resolved is found by the next look.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...model.job import ClaimRequest
from ..claim import ClaimGroup, ClaimPlan, Pair, Place, ReadyPairScanner, Times, claimable, group_by_queue
from ..database import Connection
from ..statements import Statements, as_json

LOOK_SECONDS = 0.8
MAX_PLACES = 64  # with more queues, tasks and priorities, each claim searches from the start
FULL_CHECKS = 10  # each of so many looks searches all leases, the others those that ended lately
LATELY = 2_000_000  # microseconds


class _Backlog(Struct):
    """What a worker knows about the jobs that wait for it."""

    tasks: object
    looked_at: float = 0.0
    looks: int = 0
    is_full: bool = False
    """The last claim got as many jobs as it wanted."""
    checked_at: int = 0
    """Leases that ended before were recovered."""
    places: list[Place] | None = None
    """None: unknown, or too many."""


class PlaceKeeper:
    """Implements ClaimScanner."""

    def __init__(self, sql: Statements) -> None:
        self._sql, self._scanner = sql, ReadyPairScanner(sql)
        self._backlogs: dict[int, _Backlog] = {}

    def _backlog(self, request: ClaimRequest) -> _Backlog:
        """Return what is known for this pool, which has the same set of tasks in all of its requests."""
        found = self._backlogs.get(id(request.tasks))
        if found is None or found.tasks is not request.tasks:
            found = self._backlogs[id(request.tasks)] = _Backlog(request.tasks)
        return found

    def remembered(self, request: ClaimRequest) -> list[ClaimGroup] | None:
        backlog = self._backlog(request)
        if not backlog.is_full or request.skip or monotonic() - backlog.looked_at >= LOOK_SECONDS:
            return None
        return None if backlog.places is None else _groups(request, backlog.places)

    def scan(self, connection: Connection, request: ClaimRequest, times: Times) -> ClaimPlan:
        backlog = self._backlog(request)
        backlog.places = None
        if backlog.is_full and not request.skip:
            plan = self._look(connection, request, times, backlog)
            if plan is not None:
                return plan
        return self._scanner.scan(connection, request, times)

    def _look(
        self, connection: Connection, request: ClaimRequest, times: Times, backlog: _Backlog
    ) -> ClaimPlan | None:
        """Find the places. None: there are too many, or jobs of versions, as during a deployment."""
        backlog.looked_at, backlog.looks = monotonic(), backlog.looks + 1
        since = -1 if backlog.looks % FULL_CHECKS == 1 else backlog.checked_at - LATELY
        values: dict[str, Any] = {**times, "since": since, "most": MAX_PLACES + 1}
        if request.queues is None:
            statement = self._sql.ready_places
        else:
            statement, values["queues"] = self._sql.ready_places_in, as_json([name for name, _ in request.queues])
        (due, expired, versioned, *_), *rows = connection.execute(statement, values).fetchall()
        if not int(expired):
            backlog.checked_at = times["boot_now"]
        if len(rows) > MAX_PLACES or versioned:
            return None
        pairs = set(claimable([(queue, task, paused) for queue, task, _, _, paused in rows], request))
        backlog.places = [
            Place(queue, task, priority, id - 1) for queue, task, priority, id, _ in rows if (queue, task) in pairs
        ]
        return ClaimPlan(int(due), int(expired), _groups(request, backlog.places))

    def claimed(self, request: ClaimRequest, count: int) -> None:
        self._backlog(request).is_full = count >= request.limit


def _groups(request: ClaimRequest, places: Sequence[Place]) -> list[ClaimGroup]:
    by_pair: dict[Pair, list[Place]] = {}
    for one in places:
        by_pair.setdefault((one.queue, one.task), []).append(one)
    if not by_pair:
        return []
    if request.queues is None:
        return [ClaimGroup([*by_pair], request.limit, request.limit, places=places)]
    return [
        replace(group, places=[place for pair in group.pairs for place in by_pair[pair]])
        for group in group_by_queue(request.queues, [*by_pair])
    ]
