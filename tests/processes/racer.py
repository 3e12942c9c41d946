"""One of two processes that do something to the same job, chain or batch at the same instant, many times over.

usage: racer.py DATABASE LOG SIDE FILE          (SIDE is 0 or 1; FILE is where both see how far the other is)

Then, line by line, it is told of a race and its numbers. It answers `done` when it has run all rounds of it.

What a race shows must not depend on the machine. So some rounds have a given order, one side after the other; in
some both begin while the database is locked, and go on together when it is free; the others are left to chance.
"""

import logging
import mmap
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from threading import Thread
from typing import Any

import msgspec

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.errors import BatchEnded
from holdfast.model.job import Claimed, ClaimRequest, Settlement

LARGE_RESULT = '"' + "x" * 5000 + '"'  # is settled by a statement of its own
LONGEST_WAIT_SECONDS = 300
FREE, LOCKED = "free", "locked"
ONE_BY_ONE = ("01", "10")  # whose turn it is; at the last turn a side takes all the steps that it has left


class Barrier:
    """Both have a counter in a file that both have in memory, and go on when both are the same."""

    def __init__(self, path: str, side: int) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 16)
        self._mine, self._other, self._count = 8 * side, 8 * (1 - side), 0

    def meet(self) -> None:
        self.arrive()
        self.await_other()

    def arrive(self) -> None:
        self._count += 1
        struct.pack_into("q", self._shared, self._mine, self._count)

    def await_other(self) -> None:
        until = time.monotonic() + LONGEST_WAIT_SECONDS
        while struct.unpack_from("q", self._shared, self._other)[0] < self._count:
            time.sleep(0)
            if time.monotonic() > until:
                raise TimeoutError("the other did not come")


class Racer:
    def __init__(self, app: Holdfast, path: str, side: int, barrier: Barrier, log: str) -> None:
        self._app, self._path, self._side, self._barrier = app, path, side, barrier
        self._store = app.store
        self._out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lines: list[str] = []
        self.note("actor", self._store.actor)

    def note(self, *words: object) -> None:
        self._lines.append(" ".join(map(str, words)))

    def flush(self) -> None:
        os.write(self._out, "".join(f"{line}\n" for line in self._lines).encode())
        self._lines.clear()

    def race(self, number: int, *steps: Callable[[], object], orders: tuple[str, ...] = ONE_BY_ONE) -> None:
        """Take these steps while the other side takes its own: at once, or by turns."""
        kind = (FREE, LOCKED, *orders)[number % (2 + len(orders))]
        self.note("round", kind)
        self._barrier.meet()
        if kind == LOCKED:
            self._from_a_lock(number, steps)
        elif kind == FREE:
            self._take(number, steps)
        else:
            self._by_turns(number, list(steps), kind)

    def _take(self, number: int, steps: Sequence[Callable[[], object]], begun: Callable[[], object] = int) -> None:
        """Noted with when it began and ended, by the clock that both have."""
        began = time.monotonic_ns()
        begun()
        for step in steps:
            step()
        self.note("raced", number, began, time.monotonic_ns())

    def _from_a_lock(self, number: int, steps: Sequence[Callable[[], object]]) -> None:
        """Side 0 holds the lock that every write needs until both have begun. So neither ends before both have."""
        if self._side == 1:
            self._barrier.meet()
            self._take(number, steps, self._barrier.arrive)
            return
        with closing(sqlite3.connect(self._path, LONGEST_WAIT_SECONDS, check_same_thread=False)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            self._barrier.meet()

            def unlock() -> None:
                self._barrier.await_other()
                lock.rollback()

            unlocker = Thread(target=unlock)
            self._take(number, steps, lambda: (self._barrier.arrive(), unlocker.start()))
            unlocker.join()

    def _by_turns(self, number: int, steps: list[Callable[[], object]], order: str) -> None:
        for turn, whose in enumerate(order):
            self._barrier.meet()
            if int(whose) == self._side:
                now, steps = (steps[:1], steps[1:]) if whose in order[turn + 1 :] else (steps, [])
                self._take(number, now)

    def claim(self, ids: list[int]) -> Iterator[Claimed]:
        for job_id in ids:
            wanted = ClaimRequest((), 1, 600 * SECOND, f"racer {self._side}", job_id=job_id)
            claimed = next(iter(self._store.jobs.settle_and_claim((), [wanted]).claimed), None)
            assert claimed is not None
            yield claimed

    def settle(self, claimed: Claimed, way: int) -> None:
        """In one of the ways in which an attempt can end."""
        now = self._app.clock.now()
        result = LARGE_RESULT if way == 1 else None
        settlement = Settlement(claimed.lease, "succeed", now, now, result=result)
        if way == 2:
            with self._store.transaction(completes=True) as tx:
                assert self._store.jobs.settle(settlement, tx)
        else:
            assert self._store.jobs.settle_and_claim([settlement], []).lost == []

    # --- the races: what this side of each does, in every round ---

    def blockers(self, mine: list[int]) -> None:
        """Each ends one of the two blockers of a job."""
        for number, claimed in enumerate(list(self.claim(mine))):
            way = (number if self._side else number // 3) % 3  # each with each
            self.race(number, lambda one=claimed, way=way: self.settle(one, way))

    def late_waiters(self, blockers: list[int]) -> None:
        """One ends a job, the other enqueues one that waits for it."""
        if self._side == 0:
            for number, claimed in enumerate(list(self.claim(blockers))):
                self.race(number, lambda one=claimed, way=number % 3: self.settle(one, way))
        else:
            waits = self._app.task(name="waits")(lambda: None)
            for number, job_id in enumerate(blockers):
                self.race(number, lambda job_id=job_id: waits.using(after=job_id).enqueue())

    def sealing(self, batches: list[tuple[int, int]]) -> None:
        """One ends the only member of a batch, the other seals it."""
        claimed = list(self.claim([member for _, member in batches])) if self._side == 0 else []
        for number, (batch, _) in enumerate(batches):
            if self._side == 0:
                self.race(number, lambda number=number: self.settle(claimed[number], number % 3))
            else:
                self.race(number, lambda batch=batch: self._app.batches.get(batch).seal())

    def last_members(self, mine: list[int]) -> None:
        """Each ends one of the two members of a batch."""
        self.blockers(mine)

    def late_members(self, batches: list[tuple[int, int]]) -> None:
        """One ends the last member of a batch, the other adds one; and that ends, too, if it could be added."""
        task = self._app.task(name="member")(lambda: None)
        claimed = list(self.claim([member for _, member in batches])) if self._side == 0 else []
        added: list[int] = []
        for number, (batch, _) in enumerate(batches):
            if self._side == 0:
                steps = [lambda number=number: self.settle(claimed[number], number % 3)]
            else:
                steps = [lambda batch=batch: self.add(task, batch, added), lambda: self.end(added)]
            self.race(number, *steps, orders=(*ONE_BY_ONE, "101"))

    def add(self, task: Any, batch: int, added: list[int]) -> None:
        try:
            added.append(task.using(batch=self._app.batches.get(batch)).enqueue().id)
        except BatchEnded:
            self.note("refused", batch)

    def end(self, added: list[int]) -> None:
        for claimed in self.claim(added):
            self.settle(claimed, 0)
        added.clear()


def main(database: str, log: str, side: str, file: str) -> None:
    logging.disable()
    with Holdfast(database, busy_timeout=60) as app:
        racer = Racer(app, database, int(side), Barrier(file, int(side)), log)
        for line in sys.stdin:
            race, numbers = msgspec.json.decode(line)
            getattr(racer, race)(numbers)
            racer.flush()
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
