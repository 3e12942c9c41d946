"""Only the checkpointer checkpoints, and the write-ahead log stays small."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Queue
from holdfast.store.sqlite.engine.checkpoint import Checkpointer
from holdfast.store.sqlite.engine.connection import MAX_WAL_BYTES
from holdfast.store.sqlite.engine.errors import BusyRetry
from support.running_worker import eventually

BOUND = 5 * MAX_WAL_BYTES  # it may grow while a checkpoint waits for the lock
BLOB = 100_000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


class WalSize:
    """The largest size of the WAL so far. Uses only stat(): opening the file would drop SQLite's locks."""

    def __init__(self, database: Path) -> None:
        self._wal, self.largest = Path(f"{database}-wal"), 0

    def measure(self) -> None:
        self.largest = max(self.largest, self._wal.stat().st_size)


def autocheckpoint(connection: sqlite3.Connection) -> int:
    pages: int = connection.execute("PRAGMA wal_autocheckpoint").fetchall()[0][0]
    return pages


def test_no_connection_of_holdfast_checkpoints_automatically(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def record(path: Any, *args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, *args, **options)
        if path != ":memory:":
            opened.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", record)
    with Holdfast(database) as app:
        queue = app.queue("inbox")
        queue.send(1)
        queue.send_many([2, 3])
        with app.transaction() as tx:
            queue.send(4, conn=tx)
        readers = [threading.Thread(target=queue.stats) for _ in range(8)]
        for thread in readers:
            thread.start()
        for thread in readers:
            thread.join()
        assert app.queue("empty").receive(wait=0.05) is None  # the watcher
        app.jobs.list(limit=1)
        app.store.file.checkpoint()
        assert len(opened) >= 5  # writer, two of the checkpointer, reader, watcher
        assert [autocheckpoint(one) for one in opened if is_open(one)] == [0] * sum(map(is_open, opened))


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1").fetchall()
    except sqlite3.ProgrammingError:  # Holdfast closes idle readers that it does not need
        return False
    return True


@pytest.mark.parametrize(("guard", "expected"), [(True, 0), (False, 1000)])
def test_a_connection_of_the_caller_is_guarded_unless_guard_connections_is_false(
    database: Path, guard: bool, expected: int
) -> None:
    with Holdfast(database, guard_connections=guard) as app:
        connection = sqlite3.connect(database)
        app.queue("inbox").send(1, conn=connection)
        connection.commit()
        assert autocheckpoint(connection) == expected
        connection.close()


def test_a_checkpoint_copies_the_whole_wal_into_the_database(database: Path) -> None:
    with Holdfast(database) as app:
        app.queue("inbox").send_many(range(1000))
        before = database.stat().st_size
        pages, copied = app.store.file.checkpoint()
        assert pages == copied > 0
        assert database.stat().st_size > before
        assert app.queue("inbox").stats().ready == 1000


def test_the_wal_stays_small_during_twenty_thousand_sends(database: Path) -> None:
    size = WalSize(database)
    with Holdfast(database, durability="normal") as app:
        queue, before = app.queue("inbox"), database.stat().st_size
        for n in range(20_000):
            queue.send(n)
            if n % 100 == 0:
                size.measure()
        assert database.stat().st_size > before, "there was no checkpoint"
    assert size.largest < BOUND


def growths_during(queue: Queue[Any], sends: int, wal: Path) -> int:
    """Send messages. Return how many of the sends made the WAL longer."""
    sizes = [wal.stat().st_size]
    for n in range(sends):
        queue.send({"n": n})
        sizes.append(wal.stat().st_size)
    return sum(after > before for before, after in pairwise(sizes))


def test_few_flushed_sends_make_the_wal_longer(database: Path) -> None:
    """Such a flush takes twice as long. The WAL is reset instead, and uses its existing space."""
    wal = Path(f"{database}-wal")
    with Holdfast(database) as app:
        assert growths_during(app.queue("inbox"), 400, wal) < 200
        assert wal.stat().st_size < 2 * 1024 * 1024
        assert app.queue("inbox").stats().ready == 400


def test_sends_that_are_not_flushed_may_make_the_wal_longer(database: Path) -> None:
    """That costs nothing, and a checkpoint does."""
    with Holdfast(database, durability="normal") as app:
        before = database.stat().st_size
        assert growths_during(app.queue("inbox"), 400, Path(f"{database}-wal")) == 400
        assert database.stat().st_size == before, "there was a checkpoint"


def test_a_wal_with_an_open_reader_is_not_checkpointed_over_and_over(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints: list[tuple[int, int]] = []
    run = Checkpointer.run

    def record(self: Checkpointer, retry: Any) -> tuple[int, int]:
        checkpoints.append(run(self, retry))
        return checkpoints[-1]

    monkeypatch.setattr(Checkpointer, "run", record)
    with Holdfast(database) as app, closing(sqlite3.connect(database, isolation_level=None)) as reader:
        app.queue("inbox").send("x")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM holdfast_jobs").fetchall()
        assert growths_during(app.queue("inbox"), 400, Path(f"{database}-wal")) == 400
        assert 2 < len(checkpoints) < 10
        reader.execute("COMMIT")
        while checkpoints[-1][0] != checkpoints[-1][1]:
            app.queue("inbox").send("x")
        assert growths_during(app.queue("inbox"), 100, Path(f"{database}-wal")) == 0


def test_a_stored_send_does_not_wait_for_an_early_checkpoint(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process writes, the early checkpoint is skipped."""

    def wait(*_: Any) -> None:
        raise AssertionError("it waits for the write lock")

    with Holdfast(database) as app, closing(sqlite3.connect(database, isolation_level=None)) as another:

        def count(*_: Any) -> bool:
            another.execute("BEGIN IMMEDIATE")
            return True

        monkeypatch.setattr(Checkpointer, "count", count)
        monkeypatch.setattr(BusyRetry, "_retry", wait)
        assert app.queue("inbox").send("x")
        monkeypatch.undo()
        another.execute("ROLLBACK")
        assert app.queue("inbox").send("y")


def write_blobs(
    connection: sqlite3.Connection,
    count: int,
    size: WalSize,
    each: Callable[[int], object] = int,
    before: Callable[[int], object] = int,
) -> None:
    """Write large rows on a connection of the caller, as a program with tables of its own does."""
    for n in range(count):
        before(n)
        connection.execute("INSERT INTO blobs VALUES (zeroblob(?))", (BLOB,))
        each(n)
        connection.commit()
        size.measure()


@pytest.fixture
def callers_own(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE blobs (data BLOB)")
    yield connection
    connection.close()


def test_the_wal_stays_small_when_only_connections_of_the_caller_write(
    database: Path, callers_own: sqlite3.Connection
) -> None:
    size = WalSize(database)
    with Holdfast(database) as app:
        queue = app.queue("inbox")
        for _ in range(400):
            for n in range(50):
                queue.send(n, conn=callers_own)
            callers_own.commit()
            size.measure()
    assert size.largest < BOUND


def test_the_wal_stays_small_when_the_caller_writes_much_with_each_send(
    database: Path, callers_own: sqlite3.Connection
) -> None:
    size = WalSize(database)
    with Holdfast(database) as app:
        queue = app.queue("inbox")

        def wait(n: int) -> None:
            """Wait for the thread that checkpoints, which may be slow on a busy machine."""
            expected = n * BLOB - 3 * MAX_WAL_BYTES
            eventually(lambda: database.stat().st_size >= expected, "the WAL is checkpointed")

        write_blobs(callers_own, 1500, size, lambda n: queue.send(n, conn=callers_own), wait)
    assert size.largest < BOUND


def test_holdfast_checkpoints_for_a_guarded_connection_that_writes_without_it(
    database: Path, callers_own: sqlite3.Connection
) -> None:
    """Holdfast has switched off its automatic checkpoints."""
    with Holdfast(database) as app:
        app.queue("inbox").send(1, conn=callers_own)
        callers_own.commit()
        write_blobs(callers_own, 300, WalSize(database))
        expected = 300 * BLOB - MAX_WAL_BYTES
        eventually(lambda: database.stat().st_size >= expected, "the WAL is checkpointed")


def test_the_wal_stays_small_when_many_short_lived_programs_write(database: Path) -> None:
    """Each writes too little to checkpoint, and none is the last to close, because one stays open."""
    size = WalSize(database)
    with Holdfast(database):
        for _ in range(200):
            with Holdfast(database, durability="normal", blob_bytes=None) as brief:
                brief.queue("inbox").send_many(["x" * BLOB] * 5)
            size.measure()
    assert size.largest < BOUND
