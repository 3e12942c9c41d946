"""A forked child neither uses nor closes the connections of its parent, and opens its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from holdfast import Holdfast
from support.child_processes import bystander
from support.forking import Child
from support.postgres_backend import ADVISORY_LOCKS, PostgresBackend
from support.running_worker import eventually

ORPHAN = """
import os, sys, time
from holdfast import Holdfast
app = Holdfast({url!r}, busy_timeout=60)
app.store.database.locks.acquire()
app.queue("inbox").send(1)
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
"""


def sessions(backend: PostgresBackend) -> set[int]:
    rows = backend.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
    )
    return {row[0] for row in rows}


def test_a_child_has_connections_of_its_own_and_leaves_those_of_its_parent(backend: PostgresBackend) -> None:
    app = backend.open()
    inbox = app.queue("inbox")
    slot = app.store.database.locks.acquire()  # type: ignore[attr-defined]
    inbox.send("before")
    before = sessions(backend)
    assert len(before) >= 2

    def child() -> None:
        for number in range(20):
            inbox.send(number)
        app.close()

    assert Child(child).result() == "None"
    eventually(lambda: sessions(backend) <= before, "its own end a moment after it")
    assert sessions(backend) == before, "the child closed none of them"
    for number in range(20):
        inbox.send(number)
    assert backend.sql("SELECT count(*), count(DISTINCT id) FROM holdfast_jobs") == [(41, 41)]
    assert not app.store.database.locks.is_free(slot)  # type: ignore[attr-defined]
    app.store.database.locks.release(slot)  # type: ignore[attr-defined]


def test_the_sessions_of_a_killed_parent_end_although_its_child_lives(backend: PostgresBackend) -> None:
    """The child has inherited the descriptors. Were they open there, the lock of a dead worker would be held."""
    app = backend.open()
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(url=backend.url) + "sys.stdin.readline()\n"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    child = int(process.stdout.readline())
    try:
        others = f"SELECT objid FROM {ADVISORY_LOCKS} AND mode = 'ExclusiveLock'"  # noqa: S608
        assert len(backend.sql(others)) == 1
        process.kill()
        process.wait()
        os.kill(child, 0)
        eventually(lambda: backend.sql(others) == [], "the lock is free")
        assert app.queue("inbox").stats().ready == 1
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdin.close()
        process.stdout.close()


def test_a_child_that_leaves_the_block_of_a_transaction_of_its_parent_is_told_so(backend: PostgresBackend) -> None:
    app = backend.open()
    told = leave_block_in_child(app, lambda: app.queue("inbox").send("in the child"))
    assert told == "UsedAfterFork"
    rows = backend.sql("SELECT args FROM holdfast_jobs ORDER BY id")
    assert sorted(rows) == [('"in the child"',), ('"of the parent"',)]


def leave_block_in_child(app: Holdfast, then: Callable[[], object]) -> str:
    """Fork inside a transaction. Returns what the child was told when it left the block."""
    read, write = os.pipe()
    child, told = -1, ""
    try:
        with app.transaction() as tx:
            app.queue("inbox").send("of the parent", conn=tx)
            child = os.fork()
    except Exception as error:  # noqa: BLE001  in the child
        told = type(error).__name__
    if child == 0:
        try:
            then()
            os.write(write, (told or "nothing").encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as file:
        return file.read()


def test_a_worker_in_a_child_holds_a_lock_of_its_own(backend: PostgresBackend) -> None:
    """The program has used the database before it forks, as servers do that load an app and then start workers."""
    code = (
        f"from holdfast import Holdfast\napp = Holdfast({backend.url!r}, busy_timeout=60)\n"
        "app.queue('inbox').send(1)\nimport os\nif os.fork():\n    os.wait()\n    os._exit(0)\n"
        "app.store.database.locks.acquire()\n"
    )
    with bystander(code):
        rows = backend.sql(f"SELECT count(*) FROM {ADVISORY_LOCKS} AND mode = 'ExclusiveLock'")  # noqa: S608
        assert rows == [(1,)]
