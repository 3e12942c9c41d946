"""Where there is something to claim: pairs of a queue and a task with ready jobs, found by steps through the index.

A claim looks at as many pairs as have something ready, not at all jobs, nor at all tasks that the worker knows. With
few pairs it takes the jobs of the highest priority of all of them. With many, as where each customer has a queue, it
goes round: a window of pairs each time, and from each its share.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ...model import Wanted
from ..statements import Statements, as_json

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


class Look(Struct, frozen=True):
    """What there is to do."""

    due: int
    ended: int
    shares: list[Share]


class Places:
    def __init__(self, sql: Statements) -> None:
        self._sql = sql
        self._place = START  # where the last window ended

    def find(self, connection: sqlite3.Connection, wanted: Wanted, times: Times) -> Look:
        """Where there is something for this worker, in the order in which to take it."""
        if wanted.queues is not None:
            names = {"queues": as_json([name for name, _ in wanted.queues])}
            (due, ended, _), *rows = connection.execute(self._sql.ready_pairs_in, times | names).fetchall()
            return Look(due, ended, _queue_by_queue(wanted.queues, _served(rows, wanted)))
        (due, ended, _), *rows = self._step(connection, START, WINDOW + 1, times)
        if len(rows) <= WINDOW:
            pairs, each = _served(rows, wanted), wanted.limit
        else:
            pairs = self._next_window(connection, wanted, times)
            each = -(-wanted.limit // max(1, len(pairs)))
        return Look(due, ended, [Share(pairs, wanted.limit, each)] if pairs else [])

    def _next_window(self, connection: sqlite3.Connection, wanted: Wanted, times: Times) -> list[Pair]:
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


def _served(rows: list[Found], wanted: Wanted) -> list[Pair]:
    return [(queue, task) for queue, task, paused in rows if not paused and task in wanted.tasks]


def _queue_by_queue(queues: Sequence[tuple[str, int]], pairs: list[Pair]) -> list[Share]:
    """Found once per queue: a thousand of them are no reason to go through all pairs a thousand times."""
    by_queue: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_queue.setdefault(pair[0], []).append(pair)
    return [Share(by_queue[name], limit, limit) for name, limit in queues if limit > 0 and name in by_queue]
