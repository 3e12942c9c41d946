"""Errors of the disk in checkpoints and vacuum, and a damaged schema: a typed error, nothing lost."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli import main as command_line
from holdfast.errors import CorruptDatabase, DiskFull, StoreError
from holdfast.worker import dispatcher
from support.child_processes import compile_shim
from support.effort import a_part
from support.refusals import told

EVERY_FAULT = """
import ctypes, errno, sys
from holdfast import Holdfast
from holdfast.errors import StoreError
faults = ctypes.CDLL(None)
app = Holdfast(sys.argv[1], min_free_bytes=0)
inbox, kinds, number = app.queue("inbox"), sys.argv[3].encode(), int(sys.argv[4])
actions = {
    "checkpoint": app.store.file.checkpoint,
    "vacuum": lambda: app.vacuum(hurry=True),
    "full vacuum": lambda: app.vacuum(full=True),
}
sent, surfaced, call = 0, 0, 0
while True:  # until the action makes fewer calls than this
    inbox.send_many(["x" * 500] * 20)
    for message in inbox.receive_many(20): message.ack()
    call += 1
    faults.fault_arm(kinds, call, number, 0, 0)
    try: actions[sys.argv[2]]()
    except StoreError: surfaced += 1
    fired = faults.fault_failures()
    faults.fault_arm(b"", 0, 0, 0, 0)
    sent += 20
    if not fired or call > 400: break
    call += int(sys.argv[5])
actions[sys.argv[2]]()
assert inbox.stats().total == 0 and sent >= 40, inbox.stats()
assert app.check(deep=True).of("INTEGRITY") is not None
app.close()
print(surfaced)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_shim("fault_shim.c", tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("action", ["checkpoint", "vacuum", "full vacuum"])
@pytest.mark.parametrize(("kinds", "number"), [("w", 5), ("wt", 28), ("s", 5)], ids=["EIO", "ENOSPC", "flush"])
def test_an_error_of_the_disk_is_typed_wherever_it_happens(
    tmp_path: Path, shim: str, action: str, kinds: str, number: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_FAULT, str(tmp_path / "app.db"), action, kinds, str(number), str(a_part(7, 3))],
        env=os.environ | {"LD_PRELOAD": shim, "FAULT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0, "no fault surfaced"


# --- a damaged schema ---


@pytest.fixture
def damaged(path: Path) -> Path:
    """A database whose schema has a byte that is not UTF-8, which SQLite quotes in its message."""
    data = bytearray(path.read_bytes())
    at = data.index(b"CREATE TRIGGER")
    at = data.index(b"BEGIN", at)
    data[at : at + 5] = b"\xbdEGIN"
    path.write_bytes(data)
    return path


def test_a_damaged_schema_is_a_typed_error_at_opening(damaged: Path) -> None:
    with told(CorruptDatabase, str(damaged), "malformed database schema", "restore a backup"):
        Holdfast(damaged)


@pytest.mark.parametrize("command", ["stats", "jobs", "doctor", "show 1"])
def test_a_command_reports_a_damaged_schema_without_a_traceback(
    damaged: Path, command: str, run: Callable[..., object]
) -> None:
    result = run(*command.split(), "--db", damaged)
    assert result.exit_code != 0 and isinstance(result.exception, SystemExit)  # type: ignore[attr-defined]
    assert "damaged" in result.output or "malformed" in result.output, result.output  # type: ignore[attr-defined]


@pytest.fixture
def run() -> Callable[..., object]:
    from click.testing import CliRunner

    return lambda *args: CliRunner().invoke(command_line, [str(arg) for arg in args], prog_name="holdfast")


def test_an_iterable_that_raises_a_decoding_error_is_no_damage(live: Holdfast) -> None:
    def bodies() -> object:
        yield "x"
        yield b"\xff".decode()

    with pytest.raises(UnicodeDecodeError):
        live.queue("inbox").send_many(bodies())  # type: ignore[arg-type]
    live.queue("inbox").send("more")


def test_a_worker_until_idle_ends_if_the_store_fails_for_seconds(
    live: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would never be idle."""
    monkeypatch.setattr(dispatcher, "MAX_BACKOFF_SECONDS", 0.2)
    live.task(name="work")(lambda: None).enqueue()

    def fail(*_: object) -> None:
        raise StoreError("no such column: tz")

    monkeypatch.setattr(live.store.jobs, "settle_and_claim", fail)
    with told(StoreError, "no such column"):
        live.worker(until_idle=True, concurrency=1).run()


def test_ids_that_have_run_out_are_not_taken_for_a_full_disk(path: Path) -> None:
    with Holdfast(path) as app:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT INTO holdfast_jobs (id, queue, args) VALUES (?, 'inbox', '1')", (2**63 - 1,))
        with told(DiskFull, str(path), "cannot grow", "the largest possible id, 9223372036854775807"):
            app.queue("inbox").send("second")
