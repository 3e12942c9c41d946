"""Queues of others on SQLite, each behind the same three methods, and the floor and ours beside them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from huey.storage import SqliteStorage  # type: ignore[import-untyped]
from litequeue import LiteQueue  # type: ignore[import-untyped]
from persistqueue import SQLiteAckQueue
from persistqueue.serializers import json as json_serializer

from holdfast import Holdfast

from .floors import PlainBulk, PlainQueue, PlainSender
from .trips import round_trip
from .workload import Durability

TIDY_EVERY = 1_000


class Contender(Protocol):
    name: str
    default: str  # the durability it has if nobody asks for another
    path: Path

    @property
    def send_many(self) -> Callable[[Sequence[Any]], object] | None: ...

    def send(self, body: Any) -> object: ...

    def round_trip(self, body: Any) -> object:
        """Send, receive, ack."""
        ...

    def close(self) -> object: ...


class Floor:
    name, default = "floor: bare sqlite3", ""

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.path = folder / "floor.db"  # with both tables, of which a contest uses one
        self._sender = PlainSender(self.path, durability)
        self._queue = PlainQueue(self.path, durability)
        Holdfast(folder / "floor-bulk.db").close()
        self._bulk = PlainBulk(folder / "floor-bulk.db", durability, None)
        self.send, self.round_trip, self.send_many = self._sender.send, self._queue.round_trip, self._bulk.insert

    def close(self) -> None:
        for one in (self._sender, self._queue, self._bulk):
            one.close()


class Ours:
    name, default = "Holdfast", "full"
    history = True

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.path = folder / f"holdfast-{self.history}.db"
        self._app = Holdfast(self.path, durability=durability)
        self._queue = self._app.queue("inbox", history=self.history)
        self.send, self.send_many, self.close = self._queue.send, self._queue.send_many, self._app.close

    def round_trip(self, body: Any) -> None:
        round_trip(self._queue, body)


class OursWithoutHistory(Ours):
    name = "Holdfast, history=False"
    history = False


class Lite:
    name, default = "litequeue", "normal"

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.path = folder / "litequeue.db"
        self._queue = LiteQueue(self.path)
        self._queue.conn.execute(f"PRAGMA synchronous = {durability}")
        self._acked = 0
        self.close = self._queue.close

    def send(self, body: Any) -> None:
        self._queue.put(json.dumps(body))

    def round_trip(self, body: Any) -> None:
        self.send(body)
        message = self._queue.pop()
        json.loads(message.data)
        self._queue.done(message.message_id)
        self._acked += 1
        if self._acked % TIDY_EVERY == 0:
            self._queue.prune()

    def send_many(self, bodies: Sequence[Any]) -> None:
        with self._queue.transaction(mode="IMMEDIATE"):
            for body in bodies:
                self.send(body)


class Persist:
    name, default = "persist-queue, SQLiteAckQueue", "full"
    send_many = None

    def __init__(self, folder: Path, durability: Durability) -> None:
        self._queue = SQLiteAckQueue(str(folder / "persist"), serializer=json_serializer)
        self.path = folder / "persist" / "data.db"
        self._queue._putter.execute(f"PRAGMA synchronous = {durability}")  # type: ignore[attr-defined]
        self._acked = 0
        self.send, self.close = self._queue.put, self._queue.close

    def round_trip(self, body: Any) -> None:
        self._queue.put(body)
        self._queue.ack(self._queue.get(block=False))
        self._acked += 1
        if self._acked % TIDY_EVERY == 0:
            self._queue.clear_acked_data(max_delete=TIDY_EVERY, keep_latest=0)


class Huey:
    name, default = "huey, SqliteStorage", "full"
    send_many = None

    def __init__(self, folder: Path, durability: Durability) -> None:
        self.path = folder / "huey.db"
        self._storage = SqliteStorage(filename=str(self.path))
        self._storage.conn.execute(f"PRAGMA synchronous = {durability}")
        self.close = self._storage.close

    def send(self, body: Any) -> None:
        self._storage.enqueue(json.dumps(body).encode())

    def round_trip(self, body: Any) -> None:
        self.send(body)
        json.loads(self._storage.dequeue())


CONTENDERS: list[Callable[[Path, Durability], Contender]] = [Floor, Ours, OursWithoutHistory, Lite, Persist, Huey]
