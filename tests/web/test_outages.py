"""Databases that really are locked, full, read-only or gone: clients are told why, and what works goes on."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.web.server import WebServer
from support.disks import Disk, disk, fill, remount
from support.running_worker import PATIENCE_SECONDS, eventually

__all__ = ["disk"]
LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""
Serve = Callable[..., httpx.Client]


@pytest.fixture
def serve() -> Iterator[Serve]:
    opened: list[Any] = []

    def start(path: Path, **options: Any) -> httpx.Client:
        app = Holdfast(path, **options)
        server = WebServer(app.web(), port=0).start()
        api = httpx.Client(base_url=f"{server.url}api/v1", timeout=PATIENCE_SECONDS)
        opened.extend([app, server, api])
        return api

    yield start
    for one in reversed(opened):
        one.close()


def send(api: httpx.Client) -> tuple[int, str | None]:
    response = api.post("/queues/q/messages", json={"body": "x" * 5000})
    return response.status_code, response.json().get("code")


def test_another_process_holds_the_write_lock(tmp_path: Path, serve: Serve) -> None:
    path = tmp_path / "app.db"
    api = serve(path, busy_timeout=0.2)
    assert send(api) == (201, None)
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        assert send(api) == (503, "StoreBusy")
        assert [api.get(path).status_code for path in ("/jobs", "/stats", "/doctor")] == [200] * 3
        other.kill()
    assert send(api) == (201, None)


def test_a_full_disk(disk: Disk, serve: Serve) -> None:
    place = disk("32m")
    api = serve(place / "app.db")
    assert send(api) == (201, None)
    ballast = fill(place)
    eventually(lambda: send(api) == (503, "DiskFull"))
    assert [api.get(path).status_code for path in ("/jobs", "/stats", "/events")] == [200] * 3
    assert "DISK_FULL" in api.get("/doctor").text
    ballast.unlink()
    eventually(lambda: send(api) == (201, None))


def test_a_disk_that_is_read_only(disk: Disk, serve: Serve) -> None:
    place = disk("32m")
    with Holdfast(place / "app.db") as app:
        app.queue("q").send(1)
    remount(place, "ro")
    with pytest.raises(StoreError, match="cannot be written"):
        serve(place / "app.db")
    remount(place, "rw")
    assert send(serve(place / "app.db")) == (201, None)


def test_a_file_that_is_gone(tmp_path: Path, serve: Serve) -> None:
    path = tmp_path / "app.db"
    api = serve(path)
    assert send(api) == (201, None)
    with api.stream("GET", "/stream?topics=events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: ready"
        for file in tmp_path.glob("app.db*"):
            file.unlink()
        assert next(line for line in lines if line.startswith("event: ")) == "event: unavailable"
        assert "start the program again" in next(line for line in lines if line.startswith("data: "))
    eventually(lambda: send(api) == (503, "FileReplaced"))
    eventually(lambda: api.get("/jobs").json().get("code") == "FileReplaced")
