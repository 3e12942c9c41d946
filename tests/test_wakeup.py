"""The watcher: whoever commits wakes whoever waits, and it costs nothing while nothing happens.

The safety net, a look at the database once a second, is taken away: a wake-up that is lost makes a test hang.
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
from holdfast.store.sqlite.engine import watcher as watching
from holdfast.store.sqlite.engine.connection import connect
from holdfast.store.sqlite.engine.watcher import Watcher
from support.running_worker import PATIENCE_SECONDS

ROUNDS = 200


pytestmark = pytest.mark.usefixtures("no_polling")


def expect_slow_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who was woken look again for minutes: a commit is not seen before it was flushed."""
    monkeypatch.setattr(watching, "LOOK_AGAIN_SECONDS", watching.LOOK_AGAIN_SECONDS + (0.08,) * 4000)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database in which numbers are committed, kept open so that its log stays."""
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
def watcher(database: Path, raw: sqlite3.Connection) -> Iterator[Watcher]:
    watcher = Watcher(database, lambda: connect(database, "NORMAL"))
    yield watcher
    watcher.close()


class Reader:
    """Waits for a number as `receive` waits for a message: count, look, and wait if there was nothing."""

    def __init__(self, database: Path, watcher: Watcher) -> None:
        self._connection, self._watcher = sqlite3.connect(database, check_same_thread=False), watcher

    def wait_for(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            seen = self._watcher.count()
            found = self._connection.execute("SELECT coalesce(max(n), -1) FROM seen").fetchall()[0][0]
            if found >= number:
                return
            self._watcher.wait(seen, PATIENCE_SECONDS)
        raise AssertionError(f"{number} was not seen within {PATIENCE_SECONDS} s")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def reader(database: Path, watcher: Watcher) -> Iterator[Reader]:
    reader = Reader(database, watcher)
    yield reader
    reader.close()


def each_wakes(reader: Reader, commit: Callable[[int], Callable[[], float]], rounds: int = ROUNDS) -> bool:
    """Let somebody commit again and again, and wait for each commit to be seen. Prints how soon that was."""
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
def test_every_commit_of_a_plain_connection_wakes(
    raw: sqlite3.Connection, reader: Reader, synchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if synchronous == "FULL":
        expect_slow_flushes(monkeypatch)
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
    tmp_path: Path, database: Path, reader: Reader, synchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if synchronous == "FULL":
        expect_slow_flushes(monkeypatch)
    with Crew(tmp_path, database) as crew:
        other = crew.start("committer", synchronous)
        assert other.hear() == "ready", crew.complaints()

        def commit(number: int) -> Callable[[], float]:
            other.say(str(number))
            return lambda: float(other.hear())

        assert each_wakes(reader, commit)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a library is preloaded")
def test_a_commit_that_the_disk_is_slow_to_flush_wakes_when_it_is_done(
    tmp_path: Path, database: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is written first and flushed then: what the kernel tells of the write comes long before the commit."""
    expect_slow_flushes(monkeypatch)
    shim = compile_shim("slow_flush_shim.c", tmp_path)
    with Crew(tmp_path, database) as crew:
        other = crew.start("committer", "FULL", LD_PRELOAD=shim, SLOW_FLUSH_MS="400")
        assert other.hear() == "ready", crew.complaints()

        def commit(number: int) -> Callable[[], float]:
            other.say(str(number))
            return lambda: float(other.hear())

        assert each_wakes(reader, commit, rounds=3)


def test_fifty_waiting_threads_all_wake_of_one_commit(
    database: Path, raw: sqlite3.Connection, watcher: Watcher
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


def let_it_calm_down(watcher: Watcher) -> None:
    """It looks a few times, and then sleeps until it is woken."""
    while watcher.wait(watcher.count(), 0.3):
        pass


def test_waiting_for_nothing_costs_next_to_nothing(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_calm_down(watcher)
    looks, sleep = [], watching.Alarm.sleep

    def look_and_sleep(self: watching.Alarm, longest: float) -> bool:
        looks.append(longest)
        return sleep(self, longest)

    monkeypatch.setattr(watching.Alarm, "sleep", look_and_sleep)
    assert not watcher.wait(watcher.count(), 1.5)
    assert len(looks) <= len(watching.LOOK_AGAIN_SECONDS) + 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="without inotify nobody tells of it")
def test_a_file_that_is_closed_beside_a_commit_is_noticed_as_well(
    tmp_path: Path, raw: sqlite3.Connection, watcher: Watcher
) -> None:
    """The commit is looked at first, and what else was heard at the next wait."""
    file = tmp_path / "workers"
    file.touch()
    watcher.also_watch(file)
    let_it_calm_down(watcher)
    seen = watcher.count()
    with file.open("ab"):
        raw.execute("INSERT INTO seen VALUES (1)")
    assert watcher.wait(seen, PATIENCE_SECONDS)
    until = time.monotonic() + PATIENCE_SECONDS
    while not watcher.endings and time.monotonic() < until:
        watcher.wait(watcher.count(), 0.1)
    assert watcher.endings == 1


def test_without_inotify_commits_are_noticed_all_the_same(
    raw: sqlite3.Connection, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[bool] = []

    def refuse() -> None:
        refused.append(True)
        raise OSError(24, "no more inotify instances")

    monkeypatch.setattr(watching, "INotify", refuse, raising=False)
    for number in range(20):
        timer = threading.Timer(0.001, raw.execute, ("INSERT INTO seen VALUES (?)", (number,)))
        timer.start()
        reader.wait_for(number)
        timer.join()
    assert refused or not sys.platform.startswith("linux")


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
    watcher.close()
    for thread in threads:
        thread.join()
    assert ended == [True] * 5
    assert not [one for one in threading.enumerate() if one.name == "holdfast-watch"]
    assert watcher.wait(watcher.count(), PATIENCE_SECONDS), "a closed watcher must not keep anybody waiting"


def test_a_closed_watcher_that_never_watched_leaves_no_thread(database: Path) -> None:
    Watcher(database, lambda: connect(database, "NORMAL")).close()
    assert not [one for one in threading.enumerate() if one.name == "holdfast-watch"]


def test_a_long_poll_ends_with_the_commit_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_slow_flushes(monkeypatch)
    database = tmp_path / "app.db"
    with Holdfast(database) as app, Crew(tmp_path, database) as crew:
        writer = crew.start("writer", "0.05")
        assert writer.hear() == "ready", crew.complaints()
        threading.Timer(0.1, writer.say, ("go",)).start()
        message = app.queue("writers").receive(wait=PATIENCE_SECONDS)
        assert message is not None and message.body == {"n": 0}
        writer.hear()
        assert crew.complaints() == []
