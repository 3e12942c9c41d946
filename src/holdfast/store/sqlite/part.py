"""What every part of the store has: its options, clock and statements, and the way to an open engine."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...clock import Clock
from ..statements import Statements
from .writer import EngineGone, Work

if TYPE_CHECKING:
    from .engine import Engine, Options

T = TypeVar("T")


class Part(ABC):
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
                return engine.writer.run(work, durable=durable, atomic=atomic, wakes=wakes)
            except EngineGone:
                continue

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._with_engine(lambda engine: engine.read(work))
