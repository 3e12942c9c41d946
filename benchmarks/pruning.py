"""Pruning a file full of old jobs beside a running load: what it costs that load, and how long an enqueue waits."""

import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from holdfast import Holdfast, Retention

from .handlers import noop, remove
from .measure import Effort, Figure, Target, percentile

OLD = 1_000_000
SECONDS = 15
WARM_UP_SECONDS = 1.5
ROUNDS = 3
PRODUCERS = 4
START_SECONDS = 60

_spawn = multiprocessing.get_context("spawn")

# Each with one attempt and three events, as a job that succeeded has.
_JOBS = """
WITH RECURSIVE crowd (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM crowd WHERE i < :count)
INSERT INTO holdfast_jobs (queue, task, args, status, run_at, created_at, claimed_at, finished_at, attempt, actor)
SELECT 'old', 'old', '{"to":"ada@example.org","subject":"your order has shipped","number":' || i || '}', 'succeeded',
       :then + i, :then + i, :then + i, :then + i, 1, 'bench'
FROM crowd
"""
_ATTEMPTS = """
INSERT INTO holdfast_attempts (job_id, attempt, worker, claimed_at, started_at, finished_at, outcome)
SELECT id, 1, 'bench', claimed_at, claimed_at, finished_at, 'succeeded' FROM holdfast_jobs
"""
_EVENTS = """
INSERT INTO holdfast_events (job_id, at, event, attempt, actor)
SELECT id, finished_at, event, 1, 'bench' FROM holdfast_jobs,
    (SELECT 'claimed' AS event UNION ALL SELECT 'succeeded')
"""


def pruning_beside_load(folder: Path, effort: Effort) -> Iterator[Figure]:
    path, count = folder / "pruning.db", effort.of(OLD)
    seconds = SECONDS if effort.part > 0.05 else 4
    fill(path, count)
    without, beside, pruned = [], [], 0
    waits: list[float] = []
    usual: list[float] = []
    for _ in range(ROUNDS if effort.part > 0.05 else 1):
        other = _load(path, seconds, prunes=False)
        without.append(other["done"] / seconds)
        usual += other["waits"]
        one = _load(path, seconds, prunes=True)
        beside.append(one["done"] / seconds)
        waits += one["waits"]
        pruned += one["pruned"]
    ratio = median(beside) / median(without)
    left = count - pruned
    name = f"jobs enqueued and run while {count:,} old ones are pruned"
    yield Figure(
        name,
        floor=f"{median(without):,.0f} jobs/s",
        ours=f"{median(beside):,.0f} jobs/s",
        value=ratio,
        spread=(min(beside) / max(without), max(beside) / min(without)),
        target=Target(0.8),
    )
    rate = pruned / (seconds * len(beside))
    yield Figure(
        f"longest wait of {len(waits):,} enqueues meanwhile, at {rate:,.0f} pruned/s",
        floor=_longest(usual),
        ours=_longest(waits),
        value=max(waits) * 1000,
        target=Target(100, at_least=False, unit="ms"),
    )
    yield _alone(path, left)
    remove(path)


def _longest(waits: list[float]) -> str:
    return f"{max(waits) * 1000:,.1f} ms (p99 {percentile(waits, 0.99) * 1000:.1f})"


def _alone(path: Path, count: int) -> Figure:
    """The rest, with nobody else at work; and what that leaves of the file."""
    before = path.stat().st_size
    with Holdfast(path, retention=Retention()) as app:
        begun = time.perf_counter()
        report = app.prune(hurry=True)
        taken = time.perf_counter() - begun
        begun = time.perf_counter()
        app.vacuum(hurry=True)
        vacuum = time.perf_counter() - begun
    size = f"{before / 2**20:,.0f} → {path.stat().st_size / 2**20:,.0f} MiB in {vacuum:.1f} s"
    name = f"pruned alone, in a hurry: {count:,}, then vacuum"
    return Figure(name, floor=size, ours=f"{report.jobs / taken:,.0f} jobs/s")


def fill(path: Path, count: int) -> None:
    Holdfast(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN IMMEDIATE")
        then = time.time_ns() // 1000 - 40 * 24 * 3600 * 1_000_000
        connection.execute(_JOBS, {"count": count, "then": then})
        connection.execute(_ATTEMPTS)
        connection.execute(_EVENTS)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _load(path: Path, seconds: float, prunes: bool) -> dict[str, Any]:
    """A process that enqueues, in several threads, and one that runs the jobs, and prunes or does not."""
    ours, theirs = _spawn.Pipe()
    worker = _spawn.Process(target=_work, args=(path, prunes, theirs))
    worker.start()
    theirs.close()
    ours.recv()
    waits: list[float] = []
    with Holdfast(path) as app:
        task = app.task(noop)
        stop, measured = threading.Event(), threading.Event()

        def produce() -> None:
            while not stop.is_set():
                begun = time.perf_counter()
                task.enqueue()
                if measured.is_set():
                    waits.append(time.perf_counter() - begun)

        producers = [threading.Thread(target=produce, daemon=True) for _ in range(PRODUCERS)]
        for one in producers:
            one.start()
        time.sleep(WARM_UP_SECONDS)
        before = _counts(app)
        measured.set()
        time.sleep(seconds)
        measured.clear()
        after = _counts(app)
        stop.set()
        for one in producers:
            one.join()
        ours.send("stop")
        worker.join(START_SECONDS)
    return {"done": after["noop"] - before["noop"], "pruned": before["old"] - after["old"], "waits": waits}


def _counts(app: Holdfast) -> dict[str, int]:
    counts = {count.task: count.count for count in app.store.counts() if count.status == "succeeded"}
    return {"noop": counts.get("noop", 0), "old": counts.get("old", 0)}


def _work(path: Path, prunes: bool, results: Connection) -> None:
    with Holdfast(path, retention=Retention(automatic=prunes)) as app:
        app.task(noop)
        worker = app.worker()
        thread = threading.Thread(target=worker.run)
        thread.start()
        results.send("ready")
        results.recv()
        worker.stop()
        thread.join()
