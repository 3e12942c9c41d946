"""The watcher: whoever commits wakes whoever waits, at once and at no cost while nothing happens.

A wake-up that is lost shows as a wait of a whole second, the watcher's safety net.
"""

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crew import Crew, compile_shim
from holdfast import Holdfast
from holdfast.store.sqlite import watch
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.watch import Watcher

ROUNDS = 200
LONGEST_WAIT_SECONDS = 0.9  # the safety net would make it 1.0
PATIENCE_SECONDS = 10.0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database in which numbers are committed, kept open so that its log stays."""
    return tmp_path / "app.db"


@pytest.fixture
def raw(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE seen (n INTEGER)")
    yield connection
    connection.close()


@pytest.fixture
def watcher(database: Path, raw: sqlite3.Connection) -> Iterator[Watcher]:
    watcher = Watcher(database, lambda: connect(database, "NORMAL"))
    yield watcher
    watcher.close()


class Reader:
    """Waits for a number as `receive` waits for a message: count, look, and wait if there was nothing."""

    def __init__(self, database: Path, watcher: Watcher) -> None:
        self._connection, self._watcher = sqlite3.connect(database, check_same_thread=False), watcher

    def wait_for(self, number: int) -> float:
        """Returns when it was seen."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            seen = self._watcher.count()
            found = self._connection.execute("SELECT coalesce(max(n), -1) FROM seen").fetchall()[0][0]
            if found >= number:
                return time.monotonic()
            self._watcher.wait(seen, PATIENCE_SECONDS)
        raise AssertionError(f"{number} was not seen within {PATIENCE_SECONDS} s")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def reader(database: Path, watcher: Watcher) -> Iterator[Reader]:
    reader = Reader(database, watcher)
    yield reader
    reader.close()


def measure(reader: Reader, commit: Callable[[int], Callable[[], float]], rounds: int = ROUNDS) -> list[float]:
    """Let somebody commit again and again; returns the seconds from each commit to its being seen."""
    waits = []
    for number in range(rounds):
        committed_at = commit(number)
        seen_at = reader.wait_for(number)
        waits.append(seen_at - committed_at())
    waits.sort()
    print(f"\nwake-up after {waits[rounds // 2] * 1000:.2f} ms (median), {waits[-1] * 1000:.1f} ms (worst)")
    return waits


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

    assert measure(reader, commit)[-1] < LONGEST_WAIT_SECONDS


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

        assert measure(reader, commit)[-1] < LONGEST_WAIT_SECONDS


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a library is preloaded")
def test_a_commit_that_the_disk_is_slow_to_flush_wakes_when_it_is_done(
    tmp_path: Path, database: Path, reader: Reader
) -> None:
    """The log is written first and flushed then: what the kernel tells of the write comes long before the commit."""
    shim = compile_shim("slow_flush_shim.c", tmp_path)
    with Crew(tmp_path, database) as crew:
        other = crew.start("committer", "FULL", LD_PRELOAD=shim, SLOW_FLUSH_MS="400")
        assert other.hear() == "ready", crew.complaints()

        def commit(number: int) -> Callable[[], float]:
            other.say(str(number))
            return lambda: float(other.hear())

        assert measure(reader, commit, rounds=3)[-1] < 0.3


def test_fifty_waiting_threads_all_wake_of_one_commit(
    database: Path, raw: sqlite3.Connection, watcher: Watcher
) -> None:
    readers = [Reader(database, watcher) for _ in range(50)]
    seen_at = [0.0] * len(readers)
    for number in range(5):
        waiting = threading.Barrier(len(readers) + 1)

        def wait(place: int, reader: Reader, number: int = number, waiting: threading.Barrier = waiting) -> None:
            waiting.wait()
            seen_at[place] = reader.wait_for(number)

        threads = [threading.Thread(target=wait, args=pair) for pair in enumerate(readers)]
        for thread in threads:
            thread.start()
        waiting.wait()
        raw.execute("INSERT INTO seen VALUES (?)", (number,))
        committed_at = time.monotonic()
        for thread in threads:
            thread.join()
        assert max(seen_at) - committed_at < LONGEST_WAIT_SECONDS
    for reader in readers:
        reader.close()


def let_it_calm_down(watcher: Watcher) -> None:
    """Its thread starts, looks a few times, and then sleeps for a second at a time."""
    while watcher.wait(watcher.count(), 0.3):
        pass


def test_waiting_for_nothing_costs_next_to_nothing(watcher: Watcher) -> None:
    let_it_calm_down(watcher)
    begun, busy = time.monotonic(), time.process_time()
    woken = watcher.wait(watcher.count(), 1.5)
    share = (time.process_time() - busy) / (time.monotonic() - begun)
    print(f"\nidle: {share:.2%} of a processor")
    assert not woken
    assert share < 0.05


def test_without_inotify_commits_are_noticed_all_the_same(
    raw: sqlite3.Connection, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(24, "no more inotify instances")

    monkeypatch.setattr(watch, "INotify", refuse, raising=False)
    for number in range(20):
        timer = threading.Timer(0.001, raw.execute, ("INSERT INTO seen VALUES (?)", (number,)))
        timer.start()
        begun = time.monotonic()
        assert reader.wait_for(number) - begun < LONGEST_WAIT_SECONDS
        timer.join()


def test_closing_ends_all_waits_and_the_thread(watcher: Watcher) -> None:
    let_it_calm_down(watcher)
    ended: list[bool] = []
    begun = threading.Barrier(6)

    def wait() -> None:
        begun.wait()
        ended.append(watcher.wait(watcher.count(), PATIENCE_SECONDS))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait()
    before = time.monotonic()
    watcher.close()
    for thread in threads:
        thread.join()
    assert time.monotonic() - before < 0.4
    assert ended == [True] * 5
    assert not [one for one in threading.enumerate() if one.name == "holdfast-watch"]
    assert watcher.wait(watcher.count(), PATIENCE_SECONDS), "a closed watcher must not keep anybody waiting"


def test_a_closed_watcher_that_never_watched_leaves_no_thread(database: Path) -> None:
    Watcher(database, lambda: connect(database, "NORMAL")).close()
    assert not [one for one in threading.enumerate() if one.name == "holdfast-watch"]


def test_a_long_poll_ends_with_the_commit_of_another_process(tmp_path: Path) -> None:
    database = tmp_path / "app.db"
    with Holdfast(database) as app, Crew(tmp_path, database) as crew:
        writer = crew.start("writer", "0.05")
        assert writer.hear() == "ready", crew.complaints()
        threading.Timer(0.1, writer.say, ("go",)).start()
        begun = time.monotonic()
        message = app.queue("writers").receive(wait=PATIENCE_SECONDS)
        assert message is not None and message.body == {"n": 0}
        assert time.monotonic() - begun < 0.1 + LONGEST_WAIT_SECONDS
        writer.hear()
        assert crew.complaints() == []
