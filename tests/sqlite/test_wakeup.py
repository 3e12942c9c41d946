"""The commit watcher: every commit wakes every waiting thread, and an idle wait costs almost nothing.

The fallback, a check of the database once a second, is switched off, so a lost wake-up makes a test fail.
"""

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.store.sqlite.engine import watcher as watcher_module
from holdfast.store.sqlite.engine.connection import connect
from holdfast.store.sqlite.engine.watcher import CommitWatcher
from support.child_processes import Crew, compile_shim
from support.running_worker import PATIENCE_SECONDS
from support.slow_commits import USUAL

ROUNDS = 200


pytestmark = pytest.mark.usefixtures("no_polling")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path of a database in which the tests commit numbers. `raw` keeps it open, so that its WAL stays."""
    return tmp_path / "app.db"


@pytest.fixture
def raw(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE seen (n INTEGER)")
    yield connection
    connection.close()


@pytest.fixture
def watcher(database: Path, raw: sqlite3.Connection) -> Iterator[CommitWatcher]:
    watcher = CommitWatcher(database, lambda: connect(database, "NORMAL"))
    yield watcher
    watcher.close()


class Reader:
    """Waits for a number as `receive` waits for a message: read the count, read the table, wait."""

    def __init__(self, database: Path, watcher: CommitWatcher) -> None:
        self._connection, self._watcher = sqlite3.connect(database, check_same_thread=False), watcher

    def wait_for(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            seen = self._watcher.count()
            found = self._connection.execute("SELECT coalesce(max(n), -1) FROM seen").fetchall()[0][0]
            if found >= number:
                return
            self._watcher.wait(seen, PATIENCE_SECONDS)
        raise AssertionError(f"{number} was not visible within {PATIENCE_SECONDS} s")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def reader(database: Path, watcher: CommitWatcher) -> Iterator[Reader]:
    reader = Reader(database, watcher)
    yield reader
    reader.close()


def each_wakes(reader: Reader, commit: Callable[[int], Callable[[], float]], rounds: int = ROUNDS) -> bool:
    """Commit many times and wait for each commit to become visible. Print how long that took."""
    waits = []
    for number in range(rounds):
        committed_at = commit(number)
        reader.wait_for(number)
        seen_at = time.monotonic()
        waits.append(seen_at - committed_at())
    waits.sort()
    print(f"\nwake-up after {waits[rounds // 2] * 1000:.2f} ms (median), {waits[-1] * 1000:.1f} ms (worst)")
    return True


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_every_commit_of_a_plain_connection_wakes(raw: sqlite3.Connection, reader: Reader, synchronous: str) -> None:
    raw.execute(f"PRAGMA synchronous = {synchronous}")
    times: list[float] = []

    def commit(number: int) -> Callable[[], float]:
        def soon() -> None:
            time.sleep(random.choice([0, 0, random.uniform(0, 0.003)]))
            raw.execute("INSERT INTO seen VALUES (?)", (number,))
            times.append(time.monotonic())

        thread = threading.Thread(target=soon)
        thread.start()

        def committed_at() -> float:
            thread.join()
            return times[-1]

        return committed_at

    assert each_wakes(reader, commit)


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_every_commit_of_another_process_wakes(
    tmp_path: Path, database: Path, reader: Reader, synchronous: str
) -> None:
    with Crew(tmp_path, database) as crew:
        other = crew.start("committer", synchronous)
        assert other.hear() == "ready", crew.complaints()

        def commit(number: int) -> Callable[[], float]:
            other.say(str(number))
            return lambda: float(other.hear())

        assert each_wakes(reader, commit)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a library is preloaded")
def test_a_commit_that_the_disk_is_slow_to_flush_wakes_when_it_is_done(
    tmp_path: Path, database: Path, reader: Reader
) -> None:
    """The WAL is written first and flushed later, so inotify reports the write long before the commit."""
    shim = compile_shim("slow_flush_shim.c", tmp_path)
    with Crew(tmp_path, database) as crew:
        other = crew.start("committer", "FULL", LD_PRELOAD=shim, SLOW_FLUSH_MS="400")
        assert other.hear() == "ready", crew.complaints()

        def commit(number: int) -> Callable[[], float]:
            other.say(str(number))
            return lambda: float(other.hear())

        assert each_wakes(reader, commit, rounds=3)


def test_one_commit_wakes_fifty_waiting_threads(
    database: Path, raw: sqlite3.Connection, watcher: CommitWatcher
) -> None:
    readers = [Reader(database, watcher) for _ in range(50)]
    for number in range(5):
        waiting = threading.Barrier(len(readers) + 1)

        seen: list[int] = []

        def wait(
            reader: Reader, number: int = number, seen: list[int] = seen, waiting: threading.Barrier = waiting
        ) -> None:
            waiting.wait()
            reader.wait_for(number)
            seen.append(number)

        threads = [threading.Thread(target=wait, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        waiting.wait()
        raw.execute("INSERT INTO seen VALUES (?)", (number,))
        for thread in threads:
            thread.join()
        assert seen == [number] * len(readers)
    for reader in readers:
        reader.close()


def wait_until_idle(watcher: CommitWatcher) -> None:
    """Let it check a few times; after that it sleeps until it is woken."""
    while watcher.wait(watcher.count(), 0.3):
        pass


def test_an_idle_wait_costs_almost_nothing(watcher: CommitWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until_idle(watcher)
    checks, sleep = [], watcher_module.FileMonitor.sleep

    def count_and_sleep(self: watcher_module.FileMonitor, timeout: float) -> bool:
        checks.append(timeout)
        return sleep(self, timeout)

    monkeypatch.setattr(watcher_module.FileMonitor, "sleep", count_and_sleep)
    assert not watcher.wait(watcher.count(), 1.5)
    assert len(checks) <= len(USUAL) + 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only inotify reports it")
def test_a_lock_file_that_is_closed_during_a_commit_is_noticed(
    tmp_path: Path, raw: sqlite3.Connection, watcher: CommitWatcher
) -> None:
    """The commit comes first; the other report is read at the next wait."""
    file = tmp_path / "workers"
    file.touch()
    watcher.watch_lock_file(file)
    wait_until_idle(watcher)
    seen = watcher.count()
    with file.open("ab"):
        raw.execute("INSERT INTO seen VALUES (1)")
    assert watcher.wait(seen, PATIENCE_SECONDS)
    until = time.monotonic() + PATIENCE_SECONDS
    while not watcher.closed_lock_files and time.monotonic() < until:
        watcher.wait(watcher.count(), 0.1)
    assert watcher.closed_lock_files == 1


def test_without_inotify_commits_are_still_noticed(
    raw: sqlite3.Connection, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[bool] = []

    def refuse() -> None:
        refused.append(True)
        raise OSError(24, "no more inotify instances")

    monkeypatch.setattr(watcher_module, "INotify", refuse, raising=False)
    for number in range(20):
        timer = threading.Timer(0.001, raw.execute, ("INSERT INTO seen VALUES (?)", (number,)))
        timer.start()
        reader.wait_for(number)
        timer.join()
    assert refused or not sys.platform.startswith("linux")


def test_closing_ends_all_waits(watcher: CommitWatcher) -> None:
    wait_until_idle(watcher)
    results: list[bool] = []
    begun = threading.Barrier(6)

    def wait() -> None:
        begun.wait()
        results.append(watcher.wait(watcher.count(), PATIENCE_SECONDS))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait()
    watcher.close()
    for thread in threads:
        thread.join()
    assert results == [True] * 5
    assert not [one for one in threading.enumerate() if one.name == "holdfast-watch"]
    assert watcher.wait(watcher.count(), PATIENCE_SECONDS), "a wait on a closed watcher must end at once"


def test_a_closed_watcher_that_never_watched_leaves_no_thread(database: Path) -> None:
    CommitWatcher(database, lambda: connect(database, "NORMAL")).close()
    assert not [one for one in threading.enumerate() if one.name == "holdfast-watch"]


def test_a_long_poll_ends_with_the_commit_of_another_process(tmp_path: Path) -> None:
    database = tmp_path / "app.db"
    with Holdfast(database) as app, Crew(tmp_path, database) as crew:
        writer = crew.start("writer")
        assert writer.hear() == "ready", crew.complaints()
        threading.Timer(0.1, writer.say, ("go",)).start()
        message = app.queue("writers").receive(wait=PATIENCE_SECONDS)
        assert message is not None and message.body == {"n": 0}
        writer.say("stop")
        writer.hear()
        assert crew.complaints() == []
