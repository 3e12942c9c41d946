"""The files beside the database: private whatever the umask, never through a link, never named by a user."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast, Retention
from holdfast.errors import CannotOpen, DiskFull, HoldfastError, ReadOnlyDatabase
from holdfast.store.sqlite.engine import worker_locks
from holdfast.worker.worker import Worker
from support.blob_stores import large
from support.refusals import told

HOSTILE_NAMES = ["../escaped", "/etc/holdfast-escaped", "..", ".", "a/b", r"a\b", "~root", r"C:\x", "%2e%2e%2f"]


def lock_of(url: str) -> Path:
    return Path(f"{url}-workers")


def worker(app: Holdfast) -> Worker:
    if not app.tasks:
        app.task(name="work")(lambda: None)
    return app.worker(until_idle=True, concurrency=1)


def work(app: Holdfast) -> None:
    """Run one job in a worker, which takes a lock in the lock file."""
    app.task(name="work")(lambda: None).enqueue()
    assert worker(app).run().succeeded == 1


# --- the lock file ---


@contextmanager
def unopened() -> Iterator[None]:
    """Forget the lock files that this process has open."""
    before, worker_locks._files = worker_locks._files, {}
    try:
        yield
    finally:
        worker_locks._files = before


def plant_link(lock: Path, target: Path) -> None:
    lock.symlink_to(target)


def plant_dangling_link(lock: Path, target: Path) -> None:
    lock.symlink_to(target.with_name("not-there"))


def plant_hard_link(lock: Path, target: Path) -> None:
    lock.hardlink_to(target)


def plant_folder(lock: Path, target: Path) -> None:
    lock.mkdir()


def plant_pipe(lock: Path, target: Path) -> None:
    os.mkfifo(lock)


@pytest.mark.parametrize("plant", [plant_link, plant_dangling_link, plant_hard_link, plant_folder, plant_pipe])
def test_a_worker_does_not_use_what_was_planted_in_place_of_its_lock_file(
    live: Holdfast, url: str, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    before = target.stat()
    plant(lock_of(url), target)
    with unopened(), told(CannotOpen, "lock file", "-workers"):
        worker(live).run()
    assert target.read_text() == "precious" and target.stat().st_mtime_ns == before.st_mtime_ns
    assert not target.with_name("not-there").exists()
    assert live.store.workers.list() == []


@pytest.mark.parametrize("end", ["-wal", "-shm"])
@pytest.mark.parametrize("plant", [plant_link, plant_dangling_link, plant_folder, plant_pipe])
def test_a_database_does_not_open_with_something_planted_in_place_of_its_log(
    path: Path, tmp_path: Path, end: str, plant: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    plant(Path(f"{path}{end}"), target)
    with told(CannotOpen, f"{path}{end}", "not a regular file"):
        Holdfast(path)
    assert target.read_text() == "precious" and not target.with_name("not-there").exists()


def test_a_hard_link_to_the_database_in_place_of_the_lock_file_drops_no_lock(live: Holdfast, url: str) -> None:
    """Closing any descriptor of the database would drop SQLite's locks on it."""
    lock_of(url).hardlink_to(url)
    with unopened(), told(CannotOpen, "several names"):
        worker(live).run()


def test_a_disk_that_refuses_the_lock_file_raises_a_typed_error(
    live: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def refuse(number: int) -> Callable[..., int]:
        def open_(path: object, *args: object, **kwargs: object) -> int:
            if os.fspath(path) == str(lock_of(url)):  # type: ignore[call-overload]
                raise OSError(number, os.strerror(number))
            return original(path, *args, **kwargs)  # type: ignore[arg-type]

        return open_

    for number, kind in ((13, ReadOnlyDatabase), (28, DiskFull), (30, ReadOnlyDatabase), (5, CannotOpen)):
        with unopened():
            monkeypatch.setattr(os, "open", refuse(number))
            with told(kind, "lock file", str(lock_of(url))):
                worker(live).run()
            monkeypatch.undo()


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_second_user_of_a_shared_database_can_run_a_worker(shared: Path) -> None:
    """The lock file has the permissions of the database, as -wal and -shm have."""
    path = shared / "app.db"
    Holdfast(path).close()
    path.chmod(0o666)
    with Holdfast(path) as app:
        work(app)
        assert stat.S_IMODE(lock_of(str(path)).stat().st_mode) == 0o666
        as_other("assert app.worker(until_idle=True).run().succeeded == 1", path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_a_second_user_who_may_not_open_the_lock_file_gets_a_typed_error(shared: Path) -> None:
    path = shared / "app.db"
    Holdfast(path).close()
    path.chmod(0o666)
    with Holdfast(path) as app:
        work(app)
        lock_of(str(path)).chmod(0o600)
        as_other(
            """
try: app.worker(until_idle=True).run()
except ReadOnlyDatabase as error: assert "lock file" in str(error)
else: raise AssertionError
""",
            path,
        )


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which every user may create files."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


BECOME_ANOTHER = """
import os, sys, tempfile
from holdfast import Holdfast
from holdfast.errors import ReadOnlyDatabase
with tempfile.TemporaryDirectory() as folder, Holdfast(folder + "/app.db") as app:  # loads all modules first
    app.task(name="work")(lambda: None).enqueue()
    app.worker(until_idle=True).run()
os.setuid(65534)
app = Holdfast(sys.argv[1])
app.task(name="work")(lambda: None).enqueue()
"""


def as_other(code: str, path: Path) -> None:
    command = [sys.executable, "-c", BECOME_ANOTHER + code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- permissions ---


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_all_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    before = os.umask(umask)
    try:
        with Holdfast(place / "app.db") as app:
            app.queue("inbox").send(large())
            work(app)
            app.prune(retention=Retention(succeeded=0), archive=place / "jobs.jsonl.gz", hurry=True)
            modes = {file.name: stat.S_IMODE(file.lstat().st_mode) for file in place.rglob("*") if file.is_file()}
            folders = {stat.S_IMODE(one.stat().st_mode) for one in place.rglob("*") if one.is_dir()}
    finally:
        os.umask(before)
    assert {"app.db", "app.db-wal", "app.db-shm", "app.db-workers", "jobs.jsonl.gz"} < modes.keys()
    assert len(modes) == 6, "and one blob"
    assert set(modes.values()) == {0o600}, modes
    assert folders == {0o700}


# --- names ---


def test_names_from_users_never_become_paths(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "place"
    place.mkdir(parents=True)
    with Holdfast(place / "app.db") as app:
        app.task(name="work")(lambda: None)
        for name in HOSTILE_NAMES:
            actions: list[Callable[[], object]] = [
                lambda name=name: app.queue(name).send(name + "x" * 100_000),  # type: ignore[misc]
                lambda name=name: app.queue("inbox").send(name + "y" * 100_000, key=name),  # type: ignore[misc]
                lambda name=name: app.task(name=name)(lambda: name * 100_000).enqueue(),  # type: ignore[misc]
                lambda name=name: app.tasks["work"].using(tags=[name], key=name).enqueue(),  # type: ignore[misc]
                lambda name=name: app.external(name, {"x": name}),  # type: ignore[misc]
                lambda name=name: app.schedules.add(name, "work", "* * * * *"),  # type: ignore[misc]
            ]
            for action in actions:
                try:
                    action()
                except HoldfastError:  # a name that is not allowed
                    continue
        app.worker(until_idle=True, concurrency=2).run()
        app.prune(retention=Retention(succeeded=0), hurry=True)
    blobs = place / "app.db-blobs"
    strays = [
        file
        for file in tmp_path.rglob("*")
        if file.is_file() and file.parent.parent != blobs and file.name not in ("app.db", "app.db-workers")
    ]
    assert strays == []
    assert all(len(file.name) == 64 for file in blobs.glob("*/*")), "blobs are named by their content"
    assert not Path("/etc/holdfast-escaped").exists()


@pytest.mark.parametrize("prefix", ["../x_", "a/b_", "x;", "X_", ""])
def test_a_prefix_that_could_be_a_path_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(HoldfastError):
        Holdfast(tmp_path / "app.db", prefix=prefix)
    assert list(tmp_path.iterdir()) == []
