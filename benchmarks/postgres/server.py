"""A server for the benchmarks that flushes each commit, a new database for each turn, and worker processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Holdfast

from ..workers import COMMAND, wait_until

ROOT = Path(__file__).parent.parent.parent
SETTINGS = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
LEFT = """SELECT EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'ready')
    OR EXISTS (SELECT 1 FROM holdfast_jobs WHERE status = 'running')"""


class Server:
    def __init__(self, url: str) -> None:
        self.url, self._numbers = url, count()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database, which is dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        self._admin(f"CREATE DATABASE {name}")
        try:
            yield self.url.replace("///postgres?", f"///{name}?")
        finally:
            self._admin(f"DROP DATABASE {name} WITH (FORCE)")
            self._admin("CHECKPOINT")

    def version(self) -> str:
        return str(self._admin("SHOW server_version")[0][0]).split()[0]

    def _admin(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as admin:
            cursor = admin.execute(statement)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def running_server() -> Iterator[Server]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.postgres_server import start_server, stop_server

    server = start_server(SETTINGS)
    try:
        yield Server(server.url)
    finally:
        stop_server(server)


@contextmanager
def worker(url: str, processes: int = 1, at_work: int | None = None) -> Iterator[int]:
    """`holdfast worker` with its default log, thrown away. Gives its process id once all are at work.

    at_work: how many these are, if there are others.
    """
    Holdfast(url).close()
    process = subprocess.Popen(
        [*COMMAND, "--processes", str(processes)],
        env={**os.environ, "HOLDFAST_URL": url},
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with psycopg.connect(url, autocommit=True) as watcher:
            query = "SELECT count(*) FROM holdfast_workers WHERE ended_at IS NULL"
            wait_until(lambda: watcher.execute(query).fetchall() == [(at_work or processes,)])
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def wait_until_done(url: str) -> None:
    """Wait until no job is ready or running."""
    with psycopg.connect(url, autocommit=True) as watcher:
        wait_until(lambda: watcher.execute(LEFT).fetchall() == [(False,)])
