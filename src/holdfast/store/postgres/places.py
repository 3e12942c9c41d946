"""Remember where ready jobs begin in their index, so that a claim does not pass the entries of earlier claims again.

A claim leaves a dead entry in the index. VACUUM removes it, or a later search marks it, but not while any snapshot of
the server is older: a long query or a dump somewhere keeps all of them at the head of the index. So while a backlog
lasts, a worker looks from the start only now and then, and claims from where its last claim has ended. What comes
back, commits late, has a new priority, is due, has expired or has to be resolved is found by the next look.

If the look itself has to pass very many of these entries, it rests ten times as long as it took. Until then the
worker claims from the places that it knows, also if it has no backlog.
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
COSTLY_SECONDS = 0.05  # a look that takes longer is followed by a rest,
MANY_CLAIMS = 10_000  # if so many jobs were claimed before, so that their entries may be the reason
REST_FACTOR, MAX_REST_SECONDS = 10, 10.0


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
    claims: int = 0
    rests_until: float = 0.0
    """After a look that took long: when the next one may be."""


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
        backlog, now = self._backlog(request), monotonic()
        if backlog.places is None or request.skip:
            return None
        if now < backlog.rests_until or (backlog.is_full and now - backlog.looked_at < LOOK_SECONDS):
            return _groups(request, backlog.places)
        return None

    def scan(self, connection: Connection, request: ClaimRequest, times: Times) -> ClaimPlan:
        backlog, begun = self._backlog(request), monotonic()
        known = backlog.places or [] if backlog.rests_until else []
        if begun < backlog.rests_until and backlog.places is not None and not request.skip:
            return ClaimPlan(0, 0, [])  # what it remembers is all that it knows
        backlog.places, plan = None, None
        if (backlog.is_full or backlog.rests_until) and not request.skip:
            plan = self._look(connection, request, times, backlog, known)
        if plan is None:
            plan = self._scanner.scan(connection, request, times)
        took, backlog.rests_until = monotonic() - begun, 0.0
        if took > COSTLY_SECONDS and backlog.claims >= MANY_CLAIMS:
            backlog.rests_until = monotonic() + min(REST_FACTOR * took, MAX_REST_SECONDS)
        return plan

    def _look(
        self,
        connection: Connection,
        request: ClaimRequest,
        times: Times,
        backlog: _Backlog,
        known: Sequence[Place],
    ) -> ClaimPlan | None:
        """Find the places. None: there are too many, or jobs of versions, as during a deployment.

        known: places that stay known although they have no ready jobs now, if looks are rare.
        """
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
        # A queue that is paused may be resumed before the next look. A claim leaves it alone meanwhile.
        pairs = set(claimable([(queue, task, paused and not known) for queue, task, _, _, paused in rows], request))
        found = [
            Place(queue, task, priority, id - 1) for queue, task, priority, id, _ in rows if (queue, task) in pairs
        ]
        there = {(one.queue, one.task, one.priority) for one in found}
        found += [one for one in known if (one.queue, one.task, one.priority) not in there]
        backlog.places = found[:MAX_PLACES]
        return ClaimPlan(int(due), int(expired), _groups(request, backlog.places))

    def claimed(self, request: ClaimRequest, count: int) -> None:
        backlog = self._backlog(request)
        backlog.is_full = count >= request.limit
        backlog.claims += count


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
