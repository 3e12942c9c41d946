"""Ready to running, and what the clock brings back to ready before it."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ...model.job import Claimed, ClaimRequest, Sweep
from ..statements import Statements, as_json
from .database import Database
from .workers import Workers
from .workflow import Workflows

WINDOW = 32  # steps: each queue is one, and each task in it
Times = dict[str, int]  # now and boot_now
Pair = tuple[str, str]
Found = tuple[str, str, int]  # a pair, and whether its queue is paused
START: Pair = ("", "")


class Share(Struct, frozen=True):
    """What to claim together: the most of all these pairs, and of each of them."""

    pairs: Sequence[Pair]
    limit: int
    each: int


class ReadyPairs(Struct, frozen=True):
    """What there is to do."""

    due: int
    ended: int
    shares: list[Share]


class Places:
    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._place = START  # where the last window ended

    def find(self, connection: sqlite3.Connection, wanted: ClaimRequest, times: Times) -> ReadyPairs:
        """Where there is something for this worker, in the order in which to take it."""
        if wanted.queues is not None:
            names = {"queues": as_json([name for name, _ in wanted.queues])}
            (due, ended, _), *rows = connection.execute(self._sql.ready_pairs_in, times | names).fetchall()
            return ReadyPairs(due, ended, _queue_by_queue(wanted.queues, _served(rows, wanted)))
        (due, ended, _), *rows = self._step(connection, START, WINDOW + 1, times)
        if len(rows) <= WINDOW:
            pairs, each = _served(rows, wanted), wanted.limit
        else:
            pairs = self._next_window(connection, wanted, times)
            each = -(-wanted.limit // max(1, len(pairs)))
        return ReadyPairs(due, ended, [Share(pairs, wanted.limit, each)] if pairs else [])

    def _next_window(self, connection: sqlite3.Connection, wanted: ClaimRequest, times: Times) -> list[Pair]:
        """From where the last one ended, and round, until there is a pair to serve or all were seen."""
        rounds = 0
        while rounds < 2:
            _, *rows = self._step(connection, self._place, WINDOW, times)
            if len(rows) == WINDOW:
                self._place = rows[-1][:2]
            else:
                self._place = START
                rounds += 1
            if served := _served(rows, wanted):
                return served
        return []

    def _step(self, connection: sqlite3.Connection, place: Pair, most: int, times: Times) -> list[Any]:
        values = {"queue": place[0], "task": place[1], "most": most}
        return connection.execute(self._sql.ready_pairs, times | values).fetchall()


def _served(rows: list[Found], wanted: ClaimRequest) -> list[Pair]:
    return [(queue, task) for queue, task, paused in rows if not paused and task in wanted.tasks]


def _queue_by_queue(queues: Sequence[tuple[str, int]], pairs: list[Pair]) -> list[Share]:
    """Found once per queue: a thousand of them are no reason to go through all pairs a thousand times."""
    by_queue: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_queue.setdefault(pair[0], []).append(pair)
    return [Share(by_queue[name], limit, limit) for name, limit in queues if limit > 0 and name in by_queue]


SWEEP_ROWS = 1000


class Claim:
    def __init__(self, db: Database, workers: Workers, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._workers, self._workflows = db, db.sql, db.clock, workers, workflows
        self._busy_queue: str | None = None  # the queue that the last claim found something in

    def claim_messages(self, queue: str, limit: int, lease: int, worker: str) -> list[Claimed]:
        # The clocks are read in the transaction: a lease that began before the wait for the lock could end in it.
        def take_one(connection: sqlite3.Connection) -> list[Any]:
            boot_now = self._clock.boot_now()
            values = (worker, boot_now + lease, self._clock.now(), queue, boot_now)
            return connection.execute(self._sql.claim_message_at_once, values).fetchall()

        def take(connection: sqlite3.Connection) -> list[Any]:
            values = (worker, self._clock.boot_now() + lease, self._clock.now(), queue, limit)
            return connection.execute(self._sql.claim_messages, values).fetchall()

        def look_and_take(connection: sqlite3.Connection) -> list[Any] | Sweep:
            # A claim that finds nothing would still take the write lock, so look first.
            times = (self._clock.now(), self._clock.boot_now(), queue)
            due, ended, ready = connection.execute(self._sql.look_for_messages, times).fetchone()
            if due or ended:
                return needed(due, ended)
            return take(connection) if ready else []

        # Where the last claim found something this one most likely does, and needs no look before.
        if limit == 1 and queue == self._busy_queue and (one := self._db.run(take_one, atomic=True)):
            return _in_order(one)
        found = self._db.run(look_and_take, atomic=True)
        if isinstance(found, Sweep):
            self.sweep(found)
            found = self._db.run(take, atomic=True)
        self._busy_queue = queue if found else None
        return _in_order(found)

    def sweep(self, what: Sweep = Sweep.ALL) -> int:
        """Move what is due, expired, orphaned or unblocked. Returns how many jobs."""
        moved = 0
        if Sweep.DUE in what:
            moved += self._db.in_batches(self._promote_some)
        if Sweep.ENDINGS in what:
            moved += self._workflows.resolve()
        if Sweep.WORKERS in what:
            moved += self._workers.recover_lost()
        if Sweep.LEASES in what:
            moved += self._db.in_batches(self._recover_some)
        return moved

    def _promote_some(self, connection: sqlite3.Connection) -> int:
        return connection.execute(self._sql.promote, self._times()).rowcount

    def _recover_some(self, connection: sqlite3.Connection) -> int:
        times = self._times()
        self._workers.renew_for_live_workers(connection, times)
        # Both look at the same rows, the first to end, so each batch moves all of them one way or the other.
        both = (self._sql.recover_spent, self._sql.recover)
        moved = sum(connection.execute(statement, times).rowcount for statement in both)
        self._workflows.resolve_here(connection)
        return moved

    def _times(self) -> dict[str, Any]:
        now, boot_now = self._clock.now(), self._clock.boot_now()
        return {"now": now, "boot_now": boot_now, "actor": self._db.actor, "limit": SWEEP_ROWS}


def needed(due: int, ended: int) -> Sweep:
    """What is to be swept before a claim: it may have a higher priority, or an earlier place, than what is ready.

    due: 1 where something is due, 2 where some ending is not resolved. ended: whether a lease has ended.
    """
    what = Sweep(0)
    if due & 1:
        what |= Sweep.DUE
    if due & 2:
        what |= Sweep.ENDINGS
    return what | Sweep.WORKERS | Sweep.LEASES if ended else what


def _in_order(rows: list[Any]) -> "list[Claimed]":
    """RETURNING gives rows in any order: by priority, then by id."""
    if len(rows) > 1:
        rows.sort(key=lambda row: (-row[8], row[0]))
    return [_claimed(*row) for row in rows]


def _claimed(
    id: int,
    attempt: int,
    max_attempts: int,
    queue: str,
    task: str | None,
    args: bytes,
    timeout: int | None,
    history: int,
    _priority: int,
    trace: bytes | None,
    args_blob: str | None,
) -> Claimed:
    return Claimed(id, attempt, max_attempts, queue, task, args, timeout, history, trace=trace, args_blob=args_blob)
