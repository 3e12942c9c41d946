"""What every part of the store has: its options, clock and statements, and the way to an open engine."""

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ...clock import Clock
from ..statements import Statements
from .guest import take_part
from .transaction import Transaction
from .writer import EngineGone, Work

if TYPE_CHECKING:
    from .engine import Engine, Options

T = TypeVar("T")


class Hurry(threading.local):
    """How long this thread waits for others that write, if not as long as usual."""

    seconds: float | None = None


class Part(ABC):
    _hurry: Hurry
    _options: "Options"
    _clock: Clock
    _sql: Statements
    _actor: str
    _engine: "Engine | None"

    @abstractmethod
    def _ready(self) -> "Engine":
        """The open engine; opens one if there is none."""

    def _with_engine(self, use: "Callable[[Engine], T]") -> T:
        """A fork closes the engine under those who were about to use it; nothing has happened then."""
        while True:
            try:
                return use(self._ready())
            except EngineGone:
                continue

    def _run(self, work: Work[T], *, durable: bool = False, atomic: bool = False, wakes: bool = False) -> T:
        while True:  # as _with_engine, without its detours: this is the way of every write
            engine = self._engine or self._ready()
            try:
                limit = self._hurry.seconds
                return engine.writer.run(work, durable=durable, atomic=atomic, wakes=wakes, limit=limit)
            except EngineGone:
                continue

    def _take_part(self, transaction: Transaction, work: Work[T]) -> T:
        """Run the work inside a transaction that the user was given."""
        return take_part(transaction.connection, self._options.path, self._ready().patience, False, work)

    def _in_batches(self, do_some: Work[int]) -> int:
        """Each batch is a short transaction; 0 is the end of it."""
        done = 0
        while batch := self._run(do_some, wakes=True):
            done += batch
        return done

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._with_engine(lambda engine: engine.read(work))

    def _rows(self, statement: str, values: Any) -> list[Any]:
        return self._read(lambda connection: connection.execute(statement, values).fetchall())
