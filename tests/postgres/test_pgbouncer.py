"""Behind a real pgbouncer, in each mode of its pools. Skipped where pgbouncer is not installed.

`test_pooler.py` tests the details with a pooler of its own.
"""

import os
import pwd
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast
from support.postgres_backend import PostgresBackend
from support.postgres_server import UNPRIVILEGED, new_folder
from support.running_worker import RunningWorker, comes_true, eventually

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
if PGBOUNCER is None:
    warnings.warn("pgbouncer is not installed: a real pooler is NOT tested", stacklevel=1)
    pytest.skip("needs pgbouncer", allow_module_level=True)


@pytest.fixture(params=["transaction", "session"])
def url(request: pytest.FixtureRequest, backend: PostgresBackend) -> Iterator[str]:
    """The database of this test behind a pgbouncer. In transaction mode, all clients share two sessions."""
    folder, there = new_folder(), conninfo_to_dict(backend.url)
    port = f"port={there['port']} " if there.get("port") else ""
    sessions = 2 if request.param == "transaction" else 20
    (folder / "ini").write_text(
        f"[databases]\n{there['dbname']} = host={there['host']} {port}user={there['user']}\n"
        f"[pgbouncer]\nunix_socket_dir = {folder}\nlisten_port = 6432\nauth_type = any\n"
        f"pool_mode = {request.param}\ndefault_pool_size = {sessions}\n"
        f"logfile = {folder}/log\n"
    )
    command = [str(PGBOUNCER), "-q", str(folder / "ini")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **_unprivileged(folder))
    url = f"postgresql:///{there['dbname']}?host={folder}&port=6432&user={there['user']}"
    try:
        eventually(lambda: _answers(url), "pgbouncer has started")
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    owner = pwd.getpwnam(UNPRIVILEGED)
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_pgbouncer_is_found_out_and_jobs_run_behind_it(backend: PostgresBackend, url: str) -> None:
    ran = threading.Event()
    with Holdfast(url, busy_timeout=60) as far:
        assert far.store.is_pooled  # type: ignore[attr-defined]
        far.task(name="job")(lambda: ran.set())
        inbox = far.queue("inbox")
        for number in range(20):  # more often than it takes psycopg to prepare a statement
            inbox.send(number)
            message = inbox.receive()
            assert message is not None and message.body == number and message.ack()
        with far.transaction() as tx:
            inbox.send("last", conn=tx)
        far.tasks["job"].using(key="one").enqueue()
        with RunningWorker(far):
            comes_true(ran, "a worker behind it finds the job")
            eventually(lambda: far.jobs.count(task="job", status="succeeded") == 1)
        assert "POOLER" in {one.code for one in far.check().findings}
    assert backend.sql("SELECT count(*) FROM pg_listening_channels()") == [(0,)]
    assert backend.sql("SELECT DISTINCT ending FROM holdfast_workers") == [("stopped",)]


def test_a_worker_that_connects_directly_serves_programs_behind_a_pgbouncer(
    backend: PostgresBackend, url: str
) -> None:
    ran = threading.Event()
    near = backend.open()
    near.task(name="job")(lambda: ran.set())
    with Holdfast(url, busy_timeout=60) as far, RunningWorker(near):
        far.task(name="job")(lambda: None).enqueue()
        comes_true(ran, "the worker is woken, or looks")
