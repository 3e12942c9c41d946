"""One of two processes that do something to the same job, chain or batch at the same instant, many times over.

usage: racer.py DATABASE LOG SIDE FILE          (SIDE is 0 or 1; FILE is where both see how far the other is)

Then, line by line, it is told of a race and its numbers. It answers `done` when it has run all rounds of it.
"""

import logging
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.errors import BatchEnded
from holdfast.model.job import Claimed, ClaimRequest, Settlement

LARGE_RESULT = '"' + "x" * 5000 + '"'  # is settled by a statement of its own
LONGEST_WAIT_SECONDS = 300


class Barrier:
    """Both have a counter in a file that both have in memory, and go on when both are the same."""

    def __init__(self, path: str, side: int) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 16)
        self._mine, self._other, self._count = 8 * side, 8 * (1 - side), 0

    def meet(self) -> None:
        self._count += 1
        struct.pack_into("q", self._shared, self._mine, self._count)
        until = time.monotonic() + LONGEST_WAIT_SECONDS
        while struct.unpack_from("q", self._shared, self._other)[0] < self._count:
            time.sleep(0)
            if time.monotonic() > until:
                raise TimeoutError("the other did not come")


class Racer:
    def __init__(self, app: Holdfast, side: int, barrier: Barrier, log: str) -> None:
        self._app, self._side, self._barrier = app, side, barrier
        self._store = app.store
        self._out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lines: list[str] = []
        self.note("actor", self._store.actor)

    def note(self, *words: object) -> None:
        self._lines.append(" ".join(map(str, words)))

    def flush(self) -> None:
        os.write(self._out, "".join(f"{line}\n" for line in self._lines).encode())
        self._lines.clear()

    def at_once(self, number: int, act: Callable[[], object]) -> None:
        """When the other is there, too. Noted with when it began and ended, by the clock that both have."""
        self._barrier.meet()
        began = time.monotonic_ns()
        act()
        self.note("raced", number, began, time.monotonic_ns())

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
            self.at_once(number, lambda one=claimed, way=way: self.settle(one, way))

    def late_waiters(self, blockers: list[int]) -> None:
        """One ends a job, the other enqueues one that waits for it."""
        if self._side == 0:
            for number, claimed in enumerate(list(self.claim(blockers))):
                self.at_once(number, lambda one=claimed, way=number % 3: self.settle(one, way))
        else:
            waits = self._app.task(name="waits")(lambda: None)
            for number, job_id in enumerate(blockers):
                self.at_once(number, lambda job_id=job_id: waits.using(after=job_id).enqueue())

    def sealing(self, batches: list[tuple[int, int]]) -> None:
        """One ends the only member of a batch, the other seals it."""
        claimed = list(self.claim([member for _, member in batches])) if self._side == 0 else []
        for number, (batch, _) in enumerate(batches):
            if self._side == 0:
                self.at_once(number, lambda number=number: self.settle(claimed[number], number % 3))
            else:
                self.at_once(number, lambda batch=batch: self._app.batches.get(batch).seal())

    def last_members(self, mine: list[int]) -> None:
        """Each ends one of the two members of a batch."""
        self.blockers(mine)

    def late_members(self, batches: list[tuple[int, int]]) -> None:
        """One ends the last member of a batch, the other adds one; and that ends, too, if it could be added."""
        task = self._app.task(name="member")(lambda: None)
        claimed = list(self.claim([member for _, member in batches])) if self._side == 0 else []
        for number, (batch, _) in enumerate(batches):
            if self._side == 0:
                self.at_once(number, lambda number=number: self.settle(claimed[number], number % 3))
            else:
                self.at_once(number, lambda batch=batch: self.add(task, batch))

    def add(self, task: Any, batch: int) -> None:
        try:
            added = task.using(batch=self._app.batches.get(batch)).enqueue()
        except BatchEnded:
            self.note("refused", batch)
            return
        self.note("added", batch)
        (claimed,) = self.claim([added.id])
        self.settle(claimed, 0)


def main(database: str, log: str, side: str, file: str) -> None:
    logging.disable()
    with Holdfast(database) as app:
        racer = Racer(app, int(side), Barrier(file, int(side)), log)
        for line in sys.stdin:
            race, numbers = msgspec.json.decode(line)
            getattr(racer, race)(numbers)
            racer.flush()
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
