"""A flush that fails: nothing durable is acknowledged until the log was written again, and then all goes on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import CorruptDatabase, FlushFailed
from holdfast.store.sqlite.engine import failed_flush
from support.child_processes import compile_shim
from support.doctor import finding
from support.refusals import told

Program = Callable[[str], str]
BEGIN = """
import ctypes, json, os, sys, threading, time
from holdfast import Holdfast
from holdfast.errors import *
faults = ctypes.CDLL(None)
EIO, FOR_EVER = 5, 1_000_000
def fail(times, k=1): faults.fault_arm(b"s", k, EIO, times - 1, 0)
def works(): faults.fault_arm(b"", 0, 0, 0, 0)
path = sys.argv[1]
app = Holdfast(path)
inbox = app.queue("inbox", max_attempts=50)
def refused(action):
    try: action()
    except FlushFailed as error: return str(error)
    raise AssertionError("not refused")
def eventually(action):
    while True:
        try: return action()
        except FlushFailed: time.sleep(0.01)
first = inbox.send_many(range(20))
"""


@pytest.fixture
def on_bad_disk(tmp_path: Path, shim: str) -> Program:
    """Runs a program whose flushes can be made to fail, and returns what it printed."""
    (tmp_path / "disk").mkdir()

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + code, str(tmp_path / "disk" / "app.db")],
            env={"LD_PRELOAD": shim, "FAULT_DIR": str(tmp_path / "disk"), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_shim("fault_shim.c", tmp_path_factory.mktemp("shim"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "app.db"


def test_a_send_whose_flush_fails_raises_and_the_next_one_is_stored(on_bad_disk: Program, database: Path) -> None:
    said = on_bad_disk("""
fail(1)
print(refused(lambda: inbox.send("refused", key="k")))
id = inbox.send("stored", key="k")
print(inbox.stats().total, os.path.exists(path + "-unflushed"))
app.close()
""")
    message, rest = said.splitlines()
    assert "could not flush" in message and "same key" in message
    assert rest == "21 False"
    with Holdfast(database) as app:
        assert [one.body for one in app.queue("inbox").receive_many(100)][-1] == "stored"


def test_while_flushes_fail_nothing_durable_is_accepted_and_messages_are_acked(
    on_bad_disk: Program,
) -> None:
    said = on_bad_disk("""
message = inbox.receive()
fail(FOR_EVER)
def in_transaction():
    with app.transaction() as tx: tx.execute("CREATE TABLE own (x)")
sends = lambda: inbox.send("x"), lambda: inbox.send_many(["x"])
for action in 3 * (*sends, in_transaction, app.store.file.checkpoint): refused(action)
print(message.ack(), inbox.receive().ack(), inbox.stats().total)
works()
eventually(lambda: inbox.send("again"))
app.store.file.checkpoint()
print(inbox.stats().total, os.path.exists(path + "-unflushed"))
""")
    assert said == "True True 18\n19 False\n"


def test_threads_that_share_a_failed_commit_are_all_refused(on_bad_disk: Program) -> None:
    said = on_bad_disk("""
fail(FOR_EVER)
answers = []
threads = [threading.Thread(target=lambda: answers.append(refused(lambda: inbox.send("x")))) for _ in range(8)]
for one in threads: one.start()
for one in threads: one.join()
works()
print(len(answers), inbox.stats().total, eventually(lambda: inbox.send("y")) > 20)
""")
    assert said == "8 20 True\n"


def test_a_process_that_starts_after_the_failure_writes_the_log_again_first(
    on_bad_disk: Program, database: Path
) -> None:
    """The kernel does not tell it: it opened the log after the error was reported."""
    on_bad_disk("""
for message in inbox.receive_many(5): message.ack()  # committed, and not flushed
fail(FOR_EVER)
refused(lambda: inbox.send("x"))
os._exit(0)
""")
    mark = failed_flush.mark_path(database)
    assert finding(database, "FLUSH_FAILED", "error").fix == "dmesg | tail"
    assert mark.exists() and mark.stat().st_mode & 0o777 == 0o600
    with Holdfast(database) as app:
        assert not mark.exists()
        assert app.check().of("FLUSH_FAILED") is None
        app.queue("inbox").send("y")


def test_a_program_that_ends_meanwhile_leaves_its_log(on_bad_disk: Program, database: Path) -> None:
    """Its last connection would otherwise copy a log with a gap into the database."""
    for ending in ("", "app.close()"):
        said = on_bad_disk(f"""
fail(FOR_EVER)
refused(lambda: inbox.send("x"))
print(os.path.getsize(path + "-wal") > 0)
{ending}
""")
        assert said == "True\n"
        assert Path(f"{database}-wal").stat().st_size > 0 and failed_flush.mark_path(database).exists()
    with Holdfast(database) as app:
        assert app.queue("inbox").stats().total == 40


def test_a_flush_that_fails_while_a_program_closes_its_database_is_noticed(on_bad_disk: Program) -> None:
    """SQLite checkpoints then, and ignores errors: what the next program wrote was behind a gap."""
    said = on_bad_disk("""
inbox.receive_many(5)  # committed, and not flushed
fail(FOR_EVER)
app.close()
print(os.path.exists(path + "-unflushed"))
works()
with Holdfast(path) as again:
    again.queue("inbox").send("more")
    print(os.path.exists(path + "-unflushed"), again.queue("inbox").stats().total)
""")
    assert said.split() == ["True", "False", "21"]


def test_a_checkpoint_that_cannot_flush_is_not_silent(on_bad_disk: Program) -> None:
    said = on_bad_disk("""
fail(1)
print(refused(app.store.file.checkpoint)[:24])
pages, copied = app.store.file.checkpoint()
print(pages == copied)
""")
    assert said == "the disk could not flush\nTrue\n"


def test_a_flush_that_fails_in_an_automatic_checkpoint_is_noticed(on_bad_disk: Program) -> None:
    said = on_bad_disk("""
import holdfast.store.sqlite.engine.checkpoint as checkpoint
checkpoint.CHANGES_PER_CHECKPOINT = checkpoint.CHANGES_PER_SIZE_CHECK = 1
fail(FOR_EVER)
for message in inbox.receive_many(20): message.ack()
print(os.path.exists(path + "-unflushed"))
refused(lambda: inbox.send("x"))
works()
print(eventually(lambda: inbox.send("x")) > 20)
""")
    assert said == "True\nTrue\n"


def test_a_transaction_of_the_callers_connection_is_refused_too(on_bad_disk: Program) -> None:
    said = on_bad_disk("""
import sqlite3
connection = sqlite3.connect(path)
fail(FOR_EVER)
refused(lambda: inbox.send("x"))
refused(lambda: inbox.send("x", conn=connection))
works()
eventually(lambda: inbox.send("x"))
inbox.send("y", conn=connection)
connection.commit()
print(inbox.stats().total)
""")
    assert said == "22\n"


def test_with_normal_durability_sends_go_on(on_bad_disk: Program) -> None:
    said = on_bad_disk("""
app.close()
app = Holdfast(path, durability="normal")
app.queue("inbox").send("x")
fail(FOR_EVER)
refused(app.store.file.checkpoint)
print(app.queue("inbox").send("x") > 0)
""")
    assert said == "True\n"


# --- the log itself ---


def test_what_the_kernel_has_dropped_is_noticed_by_the_checksums(path: Path) -> None:
    """Some file systems forget the pages as well: then the log does not lead to its last commit any more."""
    app = Holdfast(path)
    inbox = app.queue("inbox")
    inbox.send_many(["x" * 500] * 50)
    writer = app.store.database._engine.writer  # type: ignore[attr-defined]
    assert writer.failed_flush.is_open is False
    writer.failed_flush.is_open = True
    with Path(f"{path}-wal").open("r+b") as log:
        log.seek(20_000)
        log.write(b"\0" * 1024)
    with told(CorruptDatabase, "dropped", "end all programs"):
        inbox.send("x")
    with told(CorruptDatabase, "dropped"):
        inbox.receive()
    app.close()
    assert Path(f"{path}-wal").stat().st_size > 20_000, "the log was copied into the database"


def test_writing_the_log_again_drops_no_lock_and_changes_no_byte(path: Path) -> None:
    with Holdfast(path) as app:
        app.queue("inbox").send_many(["x" * 500] * 50)
        writer = app.store.database._engine.writer  # type: ignore[attr-defined]
        log = Path(f"{path}-wal")
        writer.failed_flush._commit("token", lambda action: action())
        before = log.read_bytes()
        with app.transaction():
            code = (
                "import sqlite3, sys\nconnection = sqlite3.connect(sys.argv[1], timeout=0)\n"
                "try: connection.execute('BEGIN IMMEDIATE')\nexcept sqlite3.OperationalError: print('locked')"
            )

            def other() -> str:
                done = subprocess.run(
                    [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
                )
                return done.stdout

            assert other() == "locked\n"
            assert writer.failed_flush._write_again("token", lambda action: None)
            assert other() == "locked\n"
        assert log.read_bytes() == before


def test_a_log_of_either_byte_order_is_read(path: Path) -> None:
    with Holdfast(path) as app:
        app.queue("inbox").send("x" * 100)
        wal = Path(f"{path}-wal")
        with wal.open("rb") as log:
            assert failed_flush.end_of_log(log.fileno(), b"x" * 100) == wal.stat().st_size
            assert failed_flush.end_of_log(log.fileno(), b"y" * 100) == 0


def test_flush_failed_is_a_store_error_that_a_worker_survives() -> None:
    assert not issubclass(FlushFailed, CorruptDatabase)
