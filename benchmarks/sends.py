"""One send at a time, many threads that send at once, many processes that send at once."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter
from typing import Any

from holdfast import Holdfast

from .floors import BareJobs
from .measure import Action, Effort, Figure, Target, rate, seconds, take_turns
from .queues import HoldfastQueue, HueyQueue, Litequeue, on_new_file
from .workload import BODY

NORMAL_SENDS = 4_000
WARM_UP = 300
FULL_SENDS = 2_000
THREADS = 8
PROCESSES = 16
SENDS_EACH = 300
START_SECONDS = 60

NOTES = """\
- **Sends:** each turn has a new file. At NORMAL 300 sends are not measured and 4,000 are. At FULL the first 2,000
  sends of the file are measured, from the first commit on. litequeue is set to FULL by a pragma on its connection.
  huey is measured at its storage's `enqueue`, without the cost of its tasks, at its default, which is FULL.
"""

_spawn = multiprocessing.get_context("spawn")


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield from _at_normal(folder / "sends.db", effort)
    yield from _at_full(folder / "sends.db", effort)
    yield _by_processes(folder / "storm.db", effort)


def _at_normal(path: Path, effort: Effort) -> Iterator[Figure]:
    sends = effort.of(NORMAL_SENDS)

    def turn(make: Callable[[Path], Any], method: str = "send") -> Callable[[], float]:
        def work(queue: Any) -> float:
            seconds(getattr(queue, method), WARM_UP)
            return rate(getattr(queue, method), sends)

        return partial(on_new_file, path, make, work)

    rates = take_turns(
        effort.rounds,
        "/s",
        {
            "send": turn(HoldfastQueue),
            "enqueue": turn(HoldfastQueue, "enqueue"),
            "litequeue": turn(Litequeue),
            "floor": turn(BareJobs),
        },
    )
    yield rates.ratio("send, NORMAL ÷ litequeue", "send", "litequeue", Target(0.8))
    yield rates.ratio("send, NORMAL ÷ bare statement", "send", "floor")
    yield rates.ratio("enqueue, NORMAL ÷ bare statement", "enqueue", "floor")


def _at_full(path: Path, effort: Effort) -> Iterator[Figure]:
    sends = effort.of(FULL_SENDS, least=8 * THREADS)

    def turn(make: Callable[[Path], Any]) -> Callable[[], float]:
        return partial(on_new_file, path, make, lambda queue: rate(queue.send, sends))

    ours = partial(HoldfastQueue, durability="full")
    rates = take_turns(
        effort.rounds,
        "/s",
        {
            "one thread": turn(ours),
            "threads": partial(on_new_file, path, ours, lambda queue: _rate_of_threads(queue.send, sends)),
            "litequeue": turn(partial(Litequeue, synchronous="FULL")),
            "huey": turn(HueyQueue),
        },
    )
    for peer in ("litequeue", "huey"):
        yield rates.ratio(f"send, FULL, the first {sends:,} of a file ÷ {peer}", "one thread", peer, Target(0.9))
    yield rates.ratio(f"send, FULL, {THREADS} threads ÷ one thread", "threads", "one thread", Target(2.5))


def _rate_of_threads(send: Action, sends: int) -> float:
    """From the common start of all threads until the last one ends."""
    start = threading.Barrier(THREADS + 1)

    def run() -> None:
        start.wait()
        seconds(send, sends // THREADS)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = perf_counter()
    for thread in threads:
        thread.join()
    return sends // THREADS * THREADS / (perf_counter() - begin)


def _by_processes(path: Path, effort: Effort) -> Figure:
    """All processes send at once, FULL."""
    each = effort.of(SENDS_EACH, least=20)
    with Holdfast(path) as app:
        start = _spawn.Barrier(PROCESSES + 1)
        ends = [_spawn.Pipe(duplex=False) for _ in range(PROCESSES)]
        senders = [_spawn.Process(target=_send, args=(path, each, start, end)) for _, end in ends]
        for sender, (_, end) in zip(senders, ends, strict=True):
            sender.start()
            end.close()  # so that recv raises if the sender dies
        start.wait(START_SECONDS)
        begin = time.perf_counter()
        worst = max(result.recv() for result, _ in ends)
        taken = time.perf_counter() - begin
        for sender in senders:
            sender.join()
        assert app.queue("inbox").stats().ready == PROCESSES * each
    ours = f"{PROCESSES * each / taken:,.0f} /s, worst wait {worst * 1000:,.0f} ms"
    return Figure(f"send, FULL, {PROCESSES} processes at once", ours)


def _send(path: Path, count: int, start: Barrier, result: Connection) -> None:
    with Holdfast(path, durability="full") as app:
        queue = app.queue("inbox")
        start.wait(START_SECONDS)
        result.send(max(seconds(lambda: queue.send(BODY)) for _ in range(count)))
