"""The queues that sends and trips are measured on: Holdfast, litequeue and huey, with the methods of BareJobs."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from huey.storage import SqliteStorage  # type: ignore[import-untyped]
from litequeue import LiteQueue  # type: ignore[import-untyped]

from holdfast import Holdfast

from .files import remove
from .workload import BODY, order


class Closable(Protocol):
    def close(self) -> object: ...


Q = TypeVar("Q", bound=Closable)


class HoldfastQueue:
    def __init__(self, path: Path, durability: Any = "normal", history: bool = True) -> None:
        self._app = Holdfast(path, durability=durability)
        self._queue = self._app.queue("inbox", history=history)
        self._queue.stats()  # the schema is there
        self.close = self._app.close
        self.send = partial(self._queue.send, BODY)
        self.enqueue = partial(self._app.task(order).enqueue, **BODY)
        self.send_many, self.enqueue_many = self._queue.send_many, self._app.task(order).enqueue_many

    def trip(self) -> None:
        self._queue.send(BODY)
        message = self._queue.receive()
        assert message is not None and message.ack()


class Litequeue:
    def __init__(self, path: Path, synchronous: str = "NORMAL") -> None:
        self._queue = LiteQueue(path)
        self._queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
        self.close = self._queue.close

    def send(self) -> None:
        self._queue.put(json.dumps(BODY))

    def trip(self) -> None:
        self.send()
        message = self._queue.pop()
        json.loads(message.data)
        self._queue.done(message.message_id)


class HueyQueue:
    """huey's storage without its tasks: it deletes a message when it gives it out, so there is no trip."""

    def __init__(self, path: Path) -> None:
        self._storage = SqliteStorage(filename=str(path))
        self.close = self._storage.close

    def send(self) -> None:
        self._storage.enqueue(json.dumps(BODY).encode())


def on_new_file(path: Path, make: Callable[[Path], Q], work: Callable[[Q], float]) -> float:
    """Open a queue on a new file, do the work, close it and remove the file. Returns what the work returns."""
    queue = make(path)
    try:
        return work(queue)
    finally:
        queue.close()
        remove(path)
