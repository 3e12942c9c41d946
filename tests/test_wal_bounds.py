"""Who checkpoints, and how large the write-ahead log becomes: nobody but the checkpointer, and not large."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store.sqlite.checkpoint import LARGEST_LOG_BYTES

BOUND = 5 * LARGEST_LOG_BYTES  # it may grow while a checkpoint waits for its turn, but not for ever
BLOB = 100_000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


class Log:
    """The size of the log at its largest, by stat() alone: opening the file would drop SQLite's locks."""

    def __init__(self, database: Path) -> None:
        self._log, self.largest = Path(f"{database}-wal"), 0

    def look(self) -> None:
        self.largest = max(self.largest, self._log.stat().st_size)


def autocheckpoint(connection: sqlite3.Connection) -> int:
    pages: int = connection.execute("PRAGMA wal_autocheckpoint").fetchall()[0][0]
    return pages


def test_no_connection_that_holdfast_opens_checkpoints_by_itself(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        app.store.checkpoint()
        assert len(opened) >= 5  # writer, guard, worker, reader, watcher
        assert [autocheckpoint(one) for one in opened if is_open(one)] == [0] * sum(map(is_open, opened))


def is_open(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1").fetchall()
    except sqlite3.ProgrammingError:  # Holdfast keeps no more idle readers than it needs
        return False
    return True


@pytest.mark.parametrize(("guard", "expected"), [(True, 0), (False, 1000)])
def test_a_connection_that_is_passed_in_is_guarded_unless_that_is_declined(
    database: Path, guard: bool, expected: int
) -> None:
    with Holdfast(database, guard_connections=guard) as app:
        connection = sqlite3.connect(database)
        app.queue("inbox").send(1, conn=connection)
        connection.commit()
        assert autocheckpoint(connection) == expected
        connection.close()


def test_a_checkpoint_moves_the_whole_log_into_the_database(database: Path) -> None:
    with Holdfast(database) as app:
        app.queue("inbox").send_many(range(1000))
        before = database.stat().st_size
        pages, moved = app.store.checkpoint()
        assert pages == moved > 0
        assert database.stat().st_size > before
        assert app.queue("inbox").stats().ready == 1000


def test_the_log_stays_small_during_twenty_thousand_sends(database: Path) -> None:
    log = Log(database)
    with Holdfast(database, durability="normal") as app:
        queue, before = app.queue("inbox"), database.stat().st_size
        for n in range(20_000):
            queue.send(n)
            if n % 100 == 0:
                log.look()
        assert database.stat().st_size > before, "nobody has checkpointed"
    assert log.largest < BOUND


def write_blobs(connection: sqlite3.Connection, count: int, log: Log, each: Callable[[int], object] = int) -> None:
    """What a program with large rows of its own does on its own connection."""
    for n in range(count):
        connection.execute("INSERT INTO blobs VALUES (zeroblob(?))", (BLOB,))
        each(n)
        connection.commit()
        log.look()


@pytest.fixture
def users_own(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE blobs (data BLOB)")
    yield connection
    connection.close()


def test_the_log_stays_small_when_only_connections_of_the_user_write(
    database: Path, users_own: sqlite3.Connection
) -> None:
    log = Log(database)
    with Holdfast(database) as app:
        queue = app.queue("inbox")
        for _ in range(400):
            for n in range(50):
                queue.send(n, conn=users_own)
            users_own.commit()
            log.look()
    assert log.largest < BOUND


def test_the_log_stays_small_when_the_user_writes_much_beside_each_send(
    database: Path, users_own: sqlite3.Connection
) -> None:
    log = Log(database)
    with Holdfast(database) as app:
        queue = app.queue("inbox")
        write_blobs(users_own, 1500, log, lambda n: queue.send(n, conn=users_own))
    assert log.largest < BOUND


def test_a_guarded_connection_that_goes_on_without_holdfast_is_checkpointed_by_it(
    database: Path, users_own: sqlite3.Connection
) -> None:
    """Whoever switches off the user's own checkpoints has to do them."""
    with Holdfast(database) as app:
        app.queue("inbox").send(1, conn=users_own)
        users_own.commit()
        write_blobs(users_own, 300, Log(database))
        until = time.monotonic() + 5
        while database.stat().st_size < 300 * BLOB and time.monotonic() < until:
            app.store.wait_for_commit(app.store.commits_seen(), 0.1)
        assert database.stat().st_size >= 300 * BLOB, "30 MB are in the log, and nobody moves them"


def test_the_log_stays_small_when_many_short_lived_programs_write(database: Path) -> None:
    """Each writes too little to checkpoint, and none is the last to close, since one stays open."""
    log = Log(database)
    with Holdfast(database):
        for _ in range(200):
            with Holdfast(database, durability="normal", blob_bytes=None) as brief:
                brief.queue("inbox").send_many(["x" * BLOB] * 5)
            log.look()
    assert log.largest < BOUND
