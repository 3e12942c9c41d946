"""The same drain by huey: its storage on SQLite, its own consumer. Needs requirements-peers.txt."""

import signal
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

from huey import SqliteHuey  # type: ignore[import-untyped]

from .handlers import remove
from .workload import Durability

PATIENCE_SECONDS = 300


def drain_by_huey(path: Path, jobs: int, level: Durability) -> float:
    """The seconds from the start of its consumer to the last job. To end the consumer does not count."""
    huey = SqliteHuey(filename=str(path))
    huey.storage.conn.execute("PRAGMA synchronous = NORMAL")  # one connection for all its threads
    ended, left = threading.Event(), iter(range(jobs - 1))

    def noop() -> None:
        if next(left, None) is None:
            ended.set()

    task = huey.task()(noop)
    for _ in range(jobs):
        task()
    huey.storage.conn.execute(f"PRAGMA synchronous = {level}")
    consumer = huey.create_consumer(workers=1, worker_type="thread", periodic=False)
    handlers = _signal_handlers()
    begin = perf_counter()
    consumer.start()
    in_time = ended.wait(PATIENCE_SECONDS)
    taken = perf_counter() - begin
    consumer.stop(graceful=True)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert in_time
    assert huey.storage.queue_size() == 0
    huey.storage.close()
    remove(path)
    return taken


def _signal_handlers() -> dict[signal.Signals, Any]:
    """Which a consumer replaces by its own."""
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
