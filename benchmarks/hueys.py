"""The same drain by huey: its storage on SQLite, its own consumer. Needs requirements-peers.txt."""

import signal
import sqlite3
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

from huey import Huey  # type: ignore[import-untyped]
from huey.storage import SqliteStorage  # type: ignore[import-untyped]

from .handlers import remove

PATIENCE_SECONDS = 120


class NormalStorage(SqliteStorage):  # type: ignore[misc]
    """huey has settings for FULL and for OFF, so NORMAL is given to each connection by hand."""

    def _create_connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._create_connection()
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def drain_by_huey(path: Path, jobs: int) -> float:
    """The seconds from the start of its consumer to the end of the last job. To end the consumer does not count."""
    huey = Huey(storage_class=NormalStorage, filename=str(path))
    ended, left = threading.Event(), iter(range(jobs - 1))

    def noop() -> None:
        if next(left, None) is None:
            ended.set()

    task = huey.task()(noop)
    for _ in range(jobs):
        task()
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
