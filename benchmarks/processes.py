"""Several processes on one file: how soon a message is received, and how they get on when all send at once."""

import multiprocessing
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from holdfast import Holdfast

from .measure import Effort, Figure, percentile
from .workload import BODY, stored

MESSAGES = 400
PAUSE_SECONDS = (0.004, 0.02)
PROCESSES = 16
SENDS_EACH = 300
START_SECONDS = 60

_spawn = multiprocessing.get_context("spawn")


def wake_up_latency(folder: Path, effort: Effort) -> Iterator[Figure]:
    """From the call of send in one process to the return of receive(wait=…) in another."""
    path, count = folder / "latency.db", effort.of(MESSAGES, least=30)
    with Holdfast(path, durability="normal") as app:
        queue = app.queue("inbox")
        ours, theirs = _spawn.Pipe()
        receiver = _spawn.Process(target=_receive, args=(path, count, theirs))
        receiver.start()
        theirs.close()  # so that recv raises if the receiver dies
        ours.recv()
        chance = random.Random(1)
        for _ in range(count):
            time.sleep(chance.uniform(*PAUSE_SECONDS))  # so that the receiver waits again
            queue.send(time.monotonic_ns())
        latencies: list[float] = ours.recv()
        receiver.join()
    ours_text = f"p50 {percentile(latencies, 0.5):.2f} ms, p99 {percentile(latencies, 0.99):.2f} ms"
    yield Figure("long poll: send to receive, between processes", floor="–", ours=ours_text)


def _receive(path: Path, count: int, results: Connection) -> None:
    latencies: list[float] = []
    with Holdfast(path, durability="normal") as app:
        queue = app.queue("inbox")
        results.send("ready")
        while len(latencies) < count:
            message = queue.receive(wait=20)
            received = time.monotonic_ns()
            if message is None:
                break
            latencies.append((received - message.body) / 1e6)
            message.ack()
    results.send(latencies)


def send_storm(folder: Path, effort: Effort) -> Iterator[Figure]:
    """All processes send at once, FULL."""
    path, each = folder / "storm.db", effort.of(SENDS_EACH, least=20)
    Holdfast(path).close()
    start = _spawn.Barrier(PROCESSES + 1)
    ends = [_spawn.Pipe(duplex=False) for _ in range(PROCESSES)]
    senders = [_spawn.Process(target=_storm, args=(path, each, start, end)) for _, end in ends]
    for sender, (_, end) in zip(senders, ends, strict=True):
        sender.start()
        end.close()  # so that recv raises if the sender dies
    start.wait(START_SECONDS)
    begin = time.perf_counter()
    worst = max(result.recv() for result, _ in ends)
    taken = time.perf_counter() - begin
    for sender in senders:
        sender.join()
    assert stored(path) == PROCESSES * each
    ours = f"{PROCESSES * each / taken:,.0f} /s, worst wait {worst * 1000:,.0f} ms"
    yield Figure(f"send, {PROCESSES} processes at once, FULL", floor="–", ours=ours)


def _storm(path: Path, count: int, start: Barrier, result: Connection) -> None:
    with Holdfast(path, durability="full") as app:
        queue = app.queue("inbox")
        start.wait(START_SECONDS)
        worst = 0.0
        for _ in range(count):
            begin = time.perf_counter()
            queue.send(BODY)
            worst = max(worst, time.perf_counter() - begin)
        result.send(worst)
