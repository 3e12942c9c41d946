"""Claim ready jobs, after a sweep that makes due, expired and unblocked jobs ready."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..model.job import Claimed, ClaimRequest, Sweep
from .database import Connection, SharedDatabase
from .statements import Statements, as_json
from .workers import Workers
from .workflow import Workflows

WINDOW_STEPS = 128  # each queue is a step, and each task in it
SWEEP_ROWS = 1000  # in one transaction
SWEPT_BEFORE_CLAIM = 5000  # if more are due, the next claim moves the rest, so that jobs run meanwhile
Times = dict[str, int]  # now and boot_now
Pair = tuple[str, str]  # a queue and a task
PairRow = tuple[str, str, int]  # a pair, and whether its queue is paused
START: Pair = ("", "")


class Place(Struct):
    """Where the ready jobs of a queue, task and priority begin: behind this id."""

    queue: str
    task: str
    priority: int
    after: int


class ClaimGroup(Struct, frozen=True):
    """Pairs of queue and task that one statement claims from."""

    pairs: Sequence[Pair]
    limit: int
    limit_per_pair: int
    versions: Sequence[int] | None = None  # the newest to claim of each pair; None: claim whatever comes first
    places: Sequence[Place] | None = None  # of the ready jobs of these pairs; None: unknown


class ClaimPlan(Struct, frozen=True):
    """Where to claim, in order, and what must be swept first: see `required_sweep`."""

    due: int
    expired: int
    groups: list[ClaimGroup]


class ClaimScanner(Protocol):
    """Says where a worker is to claim."""

    def remembered(self, request: ClaimRequest) -> list[ClaimGroup] | None:
        """Return where to claim without a look at the database. None: it has to be looked."""
        ...

    def scan(self, connection: Connection, request: ClaimRequest, times: Times) -> ClaimPlan: ...

    def claimed(self, request: ClaimRequest, count: int) -> None:
        """Take note of how many jobs a request got."""
        ...


class ReadyPairScanner:
    """Finds the pairs of queue and task that have ready jobs for a worker. Implements ClaimScanner.

    If there are many pairs, each plan covers only a window of them, round-robin.
    """

    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._has_many = False  # pairs, when it last looked
        self._position = START  # where the last window ended

    def remembered(self, request: ClaimRequest) -> None:
        """Look before each claim: it is one search of an index."""

    def claimed(self, request: ClaimRequest, count: int) -> None:
        """Remember nothing."""

    def scan(self, connection: Connection, request: ClaimRequest, times: Times) -> ClaimPlan:
        if request.queues is not None:
            names = {"queues": as_json([name for name, _ in request.queues])}
            (due, expired, versioned), *rows = read_pairs(connection, self._sql.ready_pairs_in, times | names)
            groups = group_by_queue(request.queues, claimable(rows, request))
        else:
            (due, expired, versioned), pairs = self._next_pairs(connection, request, times)
            limit_per_pair = -(-request.limit // max(1, len(pairs))) if self._has_many else request.limit
            groups = [ClaimGroup(pairs, request.limit, limit_per_pair)] if pairs else []
        if versioned or request.skip:  # during a deployment
            groups = [self._without_newer(connection, request, group) for group in groups]
        return ClaimPlan(due, expired, groups)

    def _without_newer(self, connection: Connection, request: ClaimRequest, group: ClaimGroup) -> ClaimGroup:
        """Limit the versions to claim, if a pair has ready jobs of a newer one or the request skips jobs."""
        mine = [request.versions.get(task, 0) for _, task in group.pairs]
        newest = connection.execute(self._sql.newest_versions, {"pairs": as_json(group.pairs)}).fetchall()
        has_newer = any((found or 0) > version for (found,), version in zip(newest, mine, strict=True))
        return replace(group, versions=mine) if has_newer or request.skip else group

    def _next_pairs(
        self, connection: Connection, request: ClaimRequest, times: Times
    ) -> tuple[tuple[int, ...], list[Pair]]:
        """Return what to sweep, and all claimable pairs, or those of the next window that has some."""
        if not self._has_many:
            what, *rows = self._read_pairs(connection, START, WINDOW_STEPS + 1, times)
            self._has_many = len(rows) > WINDOW_STEPS
            if not self._has_many:
                return what, claimable(rows, request)
        rounds = 0
        while True:
            begin = self._position
            what, *rows = self._read_pairs(connection, begin, WINDOW_STEPS, times)
            if len(rows) == WINDOW_STEPS:
                self._position = rows[-1][:2]
            else:
                self._position, self._has_many = START, begin != START
                rounds += 1
            pairs = claimable(rows, request)
            if pairs or rounds == 2:
                return what, pairs

    def _read_pairs(self, connection: Connection, after: Pair, limit: int, times: Times) -> list[Any]:
        values = {"queue": after[0], "task": after[1], "most": limit}
        return read_pairs(connection, self._sql.ready_pairs, times | values)


def read_pairs(connection: Connection, statement: str, values: dict[str, Any]) -> list[Any]:
    """Return what to sweep, then the pairs, each with whether its queue is paused. See ready_pairs in claim.sql."""
    first, *rows = connection.execute(statement, values).fetchall()
    return [tuple(map(int, first)), *((queue, task, int(paused)) for queue, task, paused in rows)]


def claimable(rows: list[PairRow], request: ClaimRequest) -> list[Pair]:
    return [(queue, task) for queue, task, paused in rows if not paused and task in request.tasks]


def group_by_queue(queues: Sequence[tuple[str, int]], pairs: list[Pair]) -> list[ClaimGroup]:
    """Return one group per queue, in the order of the queues. Linear in the number of pairs and queues."""
    by_queue: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_queue.setdefault(pair[0], []).append(pair)
    return [ClaimGroup(by_queue[name], limit, limit) for name, limit in queues if limit > 0 and name in by_queue]


class Claim:
    def __init__(self, db: SharedDatabase, workers: Workers, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._workers, self._workflows = db, db.sql, db.clock, workers, workflows
        self._busy_queue: str | None = None  # the queue in which the last claim found a message

    # In these two the clocks are read inside the transaction: the lease must not begin before the wait for the lock.

    def claim_messages(self, queue: str, limit: int, lease: int, worker: str) -> list[Claimed]:
        def claim_next(connection: Connection) -> list[Any]:
            boot_now = self._clock.boot_now()
            values = (worker, boot_now + lease, self._clock.now(), queue, boot_now)
            return connection.execute(self._sql.claim_next_message, values).fetchall()

        # If the last claim found a message here, this one most likely will too, and need not read first.
        if limit == 1 and queue == self._busy_queue and (one := self._db.run(claim_next, atomic=True)):
            return _in_order(one, queue)
        return self._look_and_claim(queue, limit, lease, worker)

    def _look_and_claim(self, queue: str, limit: int, lease: int, worker: str) -> list[Claimed]:
        def claim(connection: Connection) -> list[Any]:
            values = (worker, self._clock.boot_now() + lease, self._clock.now(), queue, limit)
            return connection.execute(self._sql.claim_messages, values).fetchall()

        def peek_and_claim(connection: Connection) -> list[Any] | Sweep:
            # A claim takes the write lock even if it finds nothing, so read first.
            times = (self._clock.now(), self._clock.boot_now(), queue)
            due, expired, ready = connection.execute(self._sql.peek_messages, times).fetchone()
            if due or expired:
                return required_sweep(due, expired)
            return claim(connection) if ready else []

        found = self._db.run(peek_and_claim, atomic=True)
        if isinstance(found, Sweep):
            self.sweep(found, SWEPT_BEFORE_CLAIM)
            found = self._db.run(claim, atomic=True)
        self._busy_queue = queue if found else None
        return _in_order(found, queue)

    def sweep(self, what: Sweep = Sweep.ALL, limit: int | None = None) -> int:
        """Move jobs that are due, expired, orphaned or unblocked, up to about `limit` of a kind. Return how many."""
        moved = 0
        if Sweep.DUE in what:
            moved += self._db.in_batches(self._promote_batch, limit)
        if Sweep.ENDINGS in what:
            moved += self._workflows.resolve(limit)
        if Sweep.WORKERS in what:
            moved += self._workers.recover_lost(limit)
        if Sweep.LEASES in what:
            moved += self._db.in_batches(self._recover_batch, limit)
        return moved

    def _promote_batch(self, connection: Connection) -> int:
        return connection.execute(self._sql.promote, self._sweep_values()).rowcount

    def _recover_batch(self, connection: Connection) -> int:
        values = self._sweep_values()
        self._workers.renew_for_live_workers(connection, values)
        # Both statements select the same rows, those that expired first, so each batch moves all of them.
        both = (self._sql.recover_spent, self._sql.recover)
        moved = sum(connection.execute(statement, values).rowcount for statement in both)
        self._workflows.resolve_here(connection)
        return moved

    def _sweep_values(self) -> dict[str, Any]:
        now, boot_now = self._clock.now(), self._clock.boot_now()
        return {"now": now, "boot_now": boot_now, "actor": self._db.actor, "limit": SWEEP_ROWS}


def required_sweep(due: int, expired: int) -> Sweep:
    """Return what to sweep before a claim, because a swept job may come before those that are ready.

    due: bit 1 if a scheduled job is due, bit 2 if an ended job is not resolved. expired: whether a lease has expired.
    """
    what = Sweep(0)
    if due & 1:
        what |= Sweep.DUE
    if due & 2:
        what |= Sweep.ENDINGS
    return what | Sweep.WORKERS | Sweep.LEASES if expired else what


def _in_order(rows: list[Any], queue: str) -> list[Claimed]:
    """Sort messages by priority, then by id: RETURNING gives rows in any order."""
    if len(rows) > 1:
        rows.sort(key=lambda row: (-row[6], row[0]))
    return [
        Claimed(id, attempt, most, queue, None, args, timeout, history, trace=trace, args_blob=args_blob)
        for id, attempt, most, args, timeout, history, _, trace, args_blob in rows
    ]
