"""Who checkpoints, and how large the write-ahead log becomes: nobody but the checkpointer, and not large."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Queue
from holdfast.store.sqlite.engine.checkpoint import LARGEST_LOG_BYTES, Checkpointer
from holdfast.store.sqlite.engine.errors import Patience
from support.running_worker import eventually

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
        app.store.file.checkpoint()
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
        pages, moved = app.store.file.checkpoint()
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


def growths_during(queue: Queue[Any], sends: int, log: Path) -> int:
    """How many of so many sends made the log longer."""
    sizes = [log.stat().st_size]
    for n in range(sends):
        queue.send({"n": n})
        sizes.append(log.stat().st_size)
    return sum(after > before for before, after in pairwise(sizes))


def test_few_of_the_flushed_sends_make_the_log_longer(database: Path) -> None:
    """Such a flush takes twice as long. The log is started anew instead, in the space that it has."""
    log = Path(f"{database}-wal")
    with Holdfast(database) as app:
        assert growths_during(app.queue("inbox"), 400, log) < 200
        assert log.stat().st_size < 2 * 1024 * 1024
        assert app.queue("inbox").stats().ready == 400


def test_what_is_not_flushed_may_make_the_log_longer(database: Path) -> None:
    """It costs nothing then, and a checkpoint does."""
    with Holdfast(database, durability="normal") as app:
        before = database.stat().st_size
        assert growths_during(app.queue("inbox"), 400, Path(f"{database}-wal")) == 400
        assert database.stat().st_size == before, "there was a checkpoint"


def test_a_log_that_somebody_reads_from_is_not_checkpointed_again_and_again(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints: list[tuple[int, int]] = []
    run = Checkpointer.run

    def record(self: Checkpointer, patiently: Any) -> tuple[int, int]:
        checkpoints.append(run(self, patiently))
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


def test_a_send_that_is_stored_waits_for_nobody_to_checkpoint_early(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process writes, an early checkpoint is left to it, or to a later send."""

    def wait(*_: Any) -> None:
        raise AssertionError("it waits for the lock")

    with Holdfast(database) as app, closing(sqlite3.connect(database, isolation_level=None)) as another:

        def count(*_: Any) -> bool:
            another.execute("BEGIN IMMEDIATE")
            return True

        monkeypatch.setattr(Checkpointer, "count", count)
        monkeypatch.setattr(Patience, "_run_until_free", wait)
        assert app.queue("inbox").send("x")
        monkeypatch.undo()
        another.execute("ROLLBACK")
        assert app.queue("inbox").send("y")


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
        most = 300 * BLOB - LARGEST_LOG_BYTES
        eventually(lambda: database.stat().st_size >= most, "30 MB are in the log, and nobody moves them")


def test_the_log_stays_small_when_many_short_lived_programs_write(database: Path) -> None:
    """Each writes too little to checkpoint, and none is the last to close, since one stays open."""
    log = Log(database)
    with Holdfast(database):
        for _ in range(200):
            with Holdfast(database, durability="normal", blob_bytes=None) as brief:
                brief.queue("inbox").send_many(["x" * BLOB] * 5)
            log.look()
    assert log.largest < BOUND
