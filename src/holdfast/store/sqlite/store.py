"""The Store on SQLite, put together from its parts. Its SQL is in `sql/`."""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from ...blobs import BlobStore
from ...clock import Clock
from ...errors import StoreClosed, UsedAfterFork
from ..blob_files import FileBlobs
from ..statements import Statements
from ..vault import Vault
from .counting import Counting
from .engine import Engine, Options
from .examining import Examining
from .exchanging import Exchanging
from .explaining import Explaining
from .files import blob_folder, database_path
from .forecasting import Forecasting
from .forks import watch_forks
from .graphs import Graphs
from .mending import Mending
from .migrate import DEFAULT_PREFIX
from .observing import Observing
from .operating import Operating
from .part import Hurry
from .places import Places
from .presence import lock_path
from .pruning import Pruning
from .reading import Reading
from .scheduling import Scheduling
from .tallying import Tallying
from .transaction import Completion, T, Transaction, handed_out

FORK_PATIENCE_SECONDS = 1.0


class SqliteStore(
    Scheduling,
    Exchanging,
    Operating,
    Pruning,
    Forecasting,
    Graphs,
    Counting,
    Observing,
    Tallying,
    Examining,
    Mending,
    Explaining,
    Reading,
):
    def __init__(self, options: Options, clock: Clock, random: Random, token: str) -> None:
        self._options, self._clock, self._random, self._token = options, clock, random, token
        self._actor = f"{os.getpid()}-{token}"
        self._sql = Statements(Path(__file__).parent / "sql", options.prefix)
        self._places = Places(self._sql)
        self._vault = Vault(options.blobs or FileBlobs(blob_folder(options.path, options.prefix)), options.blob_bytes)
        self._slots, self._own_slot = {}, {}
        self._hurry = Hurry()
        self._opening = threading.Lock()
        self._closed = self._stranded = False
        self._engine: Engine | None = self._open_engine()
        watch_forks(self)

    @property
    def actor(self) -> str:
        return self._actor

    @property
    def place(self) -> str:
        prefix = "" if self._options.prefix == DEFAULT_PREFIX else f" ({self._options.prefix})"
        return f"{self._options.path.resolve()}{prefix}"

    def transaction(self) -> AbstractContextManager[Transaction]:
        return self._begin(Transaction)

    @contextmanager
    def completion(self, result: Any) -> Iterator[Completion]:
        with self._begin(Completion) as opened:
            opened.result = result
            yield opened

    @contextmanager
    def _begin(self, kind: type[T]) -> Iterator[T]:
        with ExitStack() as stack:
            connection = self._with_engine(lambda engine: stack.enter_context(engine.transaction()))
            yield stack.enter_context(handed_out(connection, kind))

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        before, self._hurry.seconds = self._hurry.seconds, seconds
        try:
            yield
        finally:
            self._hurry.seconds = before

    def held_for(self) -> float:
        engine = self._engine
        return 0.0 if engine is None else engine.writer.held_for()

    def refuse_waiting_for_itself(self) -> None:
        self._ready().writer.refuse_waiting_for_itself()

    def checkpoint(self) -> tuple[int, int]:
        return self._with_engine(lambda engine: engine.writer.checkpoint())

    def close(self) -> None:
        with self._opening:
            engine = self._engine
            if engine is not None:
                engine.close()
            self._closed, self._engine = True, None

    @contextmanager
    def hold_still(self) -> Iterator[None]:
        """During a fork there is no open connection, if that can be had; both sides open new ones when they need."""
        with self._opening:
            if self._engine is not None and self._engine.close_for_fork(FORK_PATIENCE_SECONDS):
                self._engine = None
            yield

    def forget_parent(self) -> None:
        """In a forked child."""
        engine, self._engine = self._engine, None
        self._opening = threading.Lock()
        self._actor = f"{os.getpid()}-{self._token}"
        self._slots, self._own_slot = {}, {}
        if engine is not None:  # somebody was using it: this child can never safely use the file
            engine.abandon()
            self._stranded = True

    def _ready(self) -> Engine:
        engine = self._engine
        if engine is not None:
            return engine
        with self._opening:
            if self._stranded:
                raise UsedAfterFork(
                    "this process was forked while its parent was using the database, so SQLite cannot be used "
                    "here any more: fork while none is open, or start processes with spawn"
                )
            if self._closed:
                raise StoreClosed("this Holdfast was closed: make a new one")
            if self._engine is None:
                self._engine = self._open_engine()
            return self._engine

    def _open_engine(self) -> Engine:
        engine = Engine(self._options, self._clock, self._random, self._sql)
        if self._slots:  # after a fork, in a process that has workers
            engine.watcher.also_watch(lock_path(self._options.path))
        return engine


def open_store(
    url: str,
    *,
    prefix: str,
    durable_level: str,
    migrate: bool,
    busy_timeout: float,
    min_free_bytes: int,
    guard_connections: bool,
    blobs: BlobStore | None,
    blob_bytes: int | None,
    clock: Clock,
    random: Random,
    token: str,
) -> SqliteStore:
    options = Options(
        path=database_path(url),
        prefix=prefix,
        durable_level=durable_level,
        migrate=migrate,
        busy_timeout=busy_timeout,
        min_free_bytes=min_free_bytes,
        guard_connections=guard_connections,
        blobs=blobs,
        blob_bytes=blob_bytes,
    )
    return SqliteStore(options, clock, random, token)
