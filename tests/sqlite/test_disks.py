"""Full, read-only and remote disks: a typed error, never a success, and no stored job is lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Retention
from holdfast.errors import DiskFull, ReadOnlyDatabase, UnsupportedFileSystem
from holdfast.store.sqlite.engine import database_file
from support.disks import Disk, fill, free, remount
from support.refusals import told
from support.running_worker import PATIENCE_SECONDS

MIB = 1024 * 1024


def send_until_full(app: Holdfast, body: object, at_most: int = 100_000) -> list[int]:
    sent: list[int] = []
    with pytest.raises(DiskFull):
        while len(sent) < at_most:
            sent.append(app.queue("inbox").send(body))
    return sent


def ids_in(path: Path) -> set[int]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {row[0] for row in connection.execute("SELECT id FROM holdfast_jobs")}
    finally:
        connection.close()


# --- full -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("body_bytes", [100, 100_000, 1_000_000])
def test_the_reserve_is_kept_so_that_running_messages_can_be_acked(disk: Disk, body_bytes: int) -> None:
    place, reserve = disk("8m"), 2 * MIB
    with Holdfast(place / "app.db", min_free_bytes=reserve) as app:
        inbox = app.queue("inbox")
        inbox.send_many(list(range(100)))
        running = inbox.receive_many(100)
        fill(place, leave=reserve + MIB + 2 * body_bytes)
        assert send_until_full(app, "x" * body_bytes)
        assert free(place) >= reserve / 2, "the reserve was used up by sends"
        send_until_full(app, "small")  # a small body may still fit where a large one does not
        with told(DiskFull, "reserve", "min_free_bytes", "free some space"):
            inbox.send("one more")
        with told(DiskFull, "reserve"):
            inbox.send_many(["one", "more"])
        assert all(message.ack() for message in running)
        assert inbox.stats().running == 0


def test_messages_can_be_received_released_and_purged_on_a_disk_below_its_reserve(disk: Disk) -> None:
    place = disk("8m")
    with Holdfast(place / "app.db", min_free_bytes=2 * MIB) as app:
        inbox = app.queue("inbox")
        inbox.send_many(list(range(500)))
        ballast = fill(place, leave=MIB)
        more = send_until_full(app, "more")
        message = inbox.receive()
        assert message is not None and message.release(delay=5) and inbox.pause() and inbox.resume()
        assert inbox.purge() == 500 + len(more)
        ballast.unlink()
        inbox.send("again")
        assert inbox.stats().total == 1


@pytest.mark.parametrize("body_bytes", [10, 1000, 100_000])
def test_a_disk_that_is_completely_full_raises_disk_full_and_loses_nothing(disk: Disk, body_bytes: int) -> None:
    place = disk("4m")
    app = Holdfast(place / "app.db", min_free_bytes=0)
    inbox = app.queue("inbox")
    ballast = fill(place, leave=MIB)
    sent = send_until_full(app, "x" * body_bytes)
    for _ in range(3):
        with told(DiskFull, "full", "free some space"):
            inbox.send_many(["y" * 1000] * 1000)
        with told(DiskFull, "full"), app.transaction() as tx:
            inbox.send_many(["z" * 1000] * 1000, conn=tx)
    assert inbox.stats().total == len(sent), "a refused message was stored"
    ballast.unlink()
    after = [inbox.send("after"), *inbox.send_many(["after"] * 10)]
    message = inbox.receive()
    assert message is not None and message.id == sent[0] and message.ack()
    app.close()
    assert ids_in(place / "app.db") == {*sent, *after}


def test_a_full_disk_leaves_the_callers_transaction_open_or_rolled_back(disk: Disk) -> None:
    place = disk("4m")
    with Holdfast(place / "app.db", min_free_bytes=0) as app:
        connection = sqlite3.connect(place / "app.db")
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.commit()
        ballast = fill(place, leave=64 * 1024)
        connection.execute("PRAGMA cache_size = 1")  # so that it must write before the commit
        connection.execute("INSERT INTO orders VALUES (1)")
        with told(DiskFull, "full"):
            app.queue("inbox").send_many(["x" * 1000] * 2000, conn=connection)
        ballast.unlink()
        is_open = connection.in_transaction
        connection.commit()
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (int(is_open),)
        assert app.queue("inbox").stats().total == 0
        connection.close()


def test_prune_and_vacuum_free_space_on_a_disk_that_is_nearly_full(disk: Disk) -> None:
    """There is no space for a long WAL then."""
    place = disk("60m")
    with Holdfast(place / "app.db", min_free_bytes=0) as app:
        inbox = app.queue("inbox")
        for _ in range(10):
            inbox.send_many(["x" * 150] * 1000)
            while batch := inbox.receive_many(100):
                for message in batch:
                    message.ack()
            app.store.file.checkpoint()
    fill(place, leave=200 * 1024)  # closing the last connection has deleted the WAL
    with Holdfast(place / "app.db", min_free_bytes=0) as app:
        before = (place / "app.db").stat().st_size
        assert app.prune(retention=Retention(succeeded=0), hurry=True).succeeded == 10_000
        assert app.vacuum(hurry=True).after_bytes < before / 5
        assert app.check(deep=True).of("INTEGRITY") is not None
    assert ids_in(place / "app.db") == set()


def test_threads_that_share_a_commit_each_get_disk_full(disk: Disk) -> None:
    place = disk("4m")
    app = Holdfast(place / "app.db", min_free_bytes=0)

    def send_on() -> list[int]:
        return send_until_full(app, "x" * 500)

    with ThreadPoolExecutor(4) as pool:
        acknowledged = [
            id for sender in [pool.submit(send_on) for _ in range(4)] for id in sender.result(PATIENCE_SECONDS)
        ]
    remount(place, "size=32m")
    app.close()
    assert len(set(acknowledged)) == len(acknowledged)
    assert set(acknowledged) <= ids_in(place / "app.db")


def test_opening_a_new_database_on_a_full_disk_raises_and_can_be_repeated(disk: Disk) -> None:
    place = disk("1m")
    ballast = fill(place, leave=8 * 1024)
    with told(DiskFull, "full", "free some space"):
        Holdfast(place / "app.db")
    ballast.unlink()
    with Holdfast(place / "app.db", min_free_bytes=0) as app:
        app.queue("inbox").send("x")


# --- read-only ------------------------------------------------------------------------------------


def test_a_read_only_file_system_raises(disk: Disk) -> None:
    place = disk("4m")
    Holdfast(place / "app.db", min_free_bytes=0).close()
    remount(place, "ro")
    with told(ReadOnlyDatabase, "app.db", "permissions", "mount"):
        Holdfast(place / "app.db")
    with told(ReadOnlyDatabase, "new.db", "created"):
        Holdfast(place / "new.db")
    with told(ReadOnlyDatabase):
        Holdfast(place / "app.db", migrate=False)


AS_NOBODY = """
import os, sys, tempfile
import encodings.ascii, encodings.idna  # while it still has the permission to read them
sys.path.insert(0, sys.argv[2])
from holdfast import Holdfast
with tempfile.TemporaryDirectory() as folder, Holdfast(f"{folder}/app.db") as app:
    app.queue("inbox").send("x")  # imports all modules that are needed later
os.setgid(65534)
os.setuid(65534)
try:
    with Holdfast(sys.argv[1]) as app:
        app.queue("inbox").send("x")
    print("it worked")
except BaseException as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def readable_package() -> Iterator[Path]:
    """A copy of the package that every user can read: the original may be readable by root only."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(Path(holdfast.__file__).parent, folder / "holdfast")
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield folder


def open_as_nobody(path: Path, package: Path) -> str:
    """Open the database in a process without root permissions. Return what it prints."""
    if os.getuid() != 0:
        pytest.skip("only root can change the user")
    command = [sys.executable, "-c", AS_NOBODY, str(path), str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    return done.stdout.strip() or done.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter: those of pytest are private."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "words"),
    [
        (0o444, 0o777, ["ReadOnlyDatabase", "permissions"]),
        (0o666, 0o555, ["ReadOnlyDatabase", "folder", "-wal"]),
        (0o222, 0o777, ["CannotOpen", "permissions"]),
        (0o000, 0o777, ["ReadOnlyDatabase", "permissions"]),
        (0o666, 0o700, ["CannotOpen", "permissions"]),
        (None, 0o555, ["ReadOnlyDatabase", "permissions"]),
        (0o666, 0o777, ["it worked"]),
    ],
)
def test_missing_permissions_raise(
    open_folder: Path, readable_package: Path, file_mode: int | None, folder_mode: int, words: list[str]
) -> None:
    folder = open_folder / "folder"
    folder.mkdir()
    path = folder / "app.db"
    if file_mode is not None:
        Holdfast(path).close()
        path.chmod(file_mode)
    folder.chmod(folder_mode)
    printed = open_as_nobody(path, readable_package)
    assert [word for word in words if word not in printed] == [], printed


# --- remote ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("magic", "name"),
    [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0xFE534D42, "SMB"), (0x65735546, "FUSE")],
)
def test_a_remote_file_system_is_refused_before_a_file_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, magic: int, name: str
) -> None:
    monkeypatch.setattr(database_file, "file_system_type", lambda _: magic)
    with told(UnsupportedFileSystem, name, "local disk"):
        Holdfast(tmp_path / "app.db")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_remote_file_system_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote" / "app.db").touch()
    (tmp_path / "app.db").symlink_to(tmp_path / "remote" / "app.db")
    monkeypatch.setattr(
        database_file, "file_system_type", lambda folder: 0x6969 if folder.name == "remote" else 0xEF53
    )
    with told(UnsupportedFileSystem, "NFS"):
        Holdfast(tmp_path / "app.db")


def test_the_type_of_a_real_file_system_is_found(disk: Disk) -> None:
    assert database_file.file_system_type(disk("1m")) == 0x01021994
    assert database_file.file_system_type(Path("/proc")) == 0x9FA0
    assert database_file.file_system_type(Path("/no/such/folder")) == 0
