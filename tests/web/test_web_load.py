"""Slow and dead clients, many connections, large bodies, and a database that is locked, gone or read-only."""

import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.errors import DiskFull, ReadOnlyDatabase
from holdfast.web import app as web_app
from holdfast.web import server as web_server
from holdfast.web.server import WebServer
from support.running_worker import eventually

CONNECTIONS = 10_000
MEGABYTE = 1024 * 1024


class ServerProcess:
    """`holdfast web`, as a process of its own."""

    def __init__(self, path: Path) -> None:
        Holdfast(path).close()
        command = [sys.executable, "-m", "holdfast", "web", "--db", str(path), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self._process.stdout.readline())
        assert found is not None
        self.address, self.api = ("127.0.0.1", int(found[1])), f"{found[0]}api/v1"

    def resident(self) -> int:
        """Return the bytes that it has in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> str:
        """Stop it, and return what it has printed."""
        self._process.terminate()
        said, _ = self._process.communicate()
        return said


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    found = ServerProcess(tmp_path / "app.db")
    yield found
    found.stop()


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process: Linux")


@needs_proc
def test_a_body_of_100_megabytes_is_refused_and_not_kept(process: ServerProcess) -> None:
    httpx.post(f"{process.api}/queues/q/messages", json={"body": 1})
    before = process.resident()
    head = b"POST /api/v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(process.address) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % (100 * MEGABYTE))
        try:
            for _ in range(100):
                client.sendall(b"x" * MEGABYTE)
        except ConnectionError:
            pass  # the server has answered, and closed the connection
        else:
            pytest.fail("the server has read all of it")
    assert process.resident() - before < 20 * MEGABYTE
    assert httpx.get(f"{process.api}/jobs").json()["items"][0]["id"] == 1
    with httpx.Client() as honest:  # a client that waits for the answer before it sends more
        content = (b"x" * 65_536 for _ in range(40))
        kind = {"content-type": "application/json"}
        try:
            answer = honest.post(f"{process.api}/queues/q/messages", content=content, headers=kind)
        except httpx.WriteError:
            return
    assert (answer.status_code, answer.json()["code"]) == (413, "PayloadTooLarge")


@needs_proc
def test_ten_thousand_connections_are_survived_in_bounded_memory(process: ServerProcess) -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    number = min(CONNECTIONS, most - 1000) if most > 0 else CONNECTIONS
    assert number > web_server.MAX_CONNECTIONS + web_server.MAX_REFUSED, "more than the server lets in"
    assert httpx.get(f"{process.api}/jobs").status_code == 200
    before = process.resident()
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, most))
        for _ in range(number):
            client = stack.enter_context(closing(socket.socket()))
            client.setblocking(False)
            client.connect_ex(process.address)
        eventually(lambda: _is_told_to_wait(process.api))
        assert process.is_alive()
        assert process.resident() - before < 150 * MEGABYTE
    eventually(lambda: _answers(process.api))


def _is_told_to_wait(api: str) -> bool:
    """Whether the server refuses further clients at once: by 503, or by closing the connection."""
    try:
        return httpx.get(f"{api}/jobs", timeout=60).status_code == 503
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError):
        return True
    except httpx.TimeoutException:
        return False


def _answers(api: str) -> bool:
    try:
        return httpx.get(f"{api}/jobs", timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def small_server(served: Holdfast) -> Iterator[WebServer]:
    server = WebServer(served.web(), port=0).start()
    yield server
    server.close()


def test_a_client_that_does_not_finish_its_request_is_disconnected(
    small_server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.2)
    for beginning in (b"", b"GET /api/v1/jobs HTT", b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"):
        with socket.create_connection(("127.0.0.1", small_server.port)) as client:
            client.sendall(beginning)
            assert client.recv(1000) == b"", "closed without an answer"


def test_a_client_that_does_not_finish_its_body_is_told_and_disconnected(
    small_server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_app, "BODY_SECONDS", 0.2)
    head = b"POST /api/v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", small_server.port)) as client:
        client.sendall(head + b'Content-Length: 1000\r\n\r\n{"body": ')
        answer = b"".join(iter(lambda: client.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 408") and b"RequestTimeout" in answer


def test_connections_get_a_part_of_the_files_that_the_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, expected in ((1024, 256), (-1, web_server.MAX_CONNECTIONS), (10**6, web_server.MAX_CONNECTIONS)):
        monkeypatch.setattr(web_server.resource, "getrlimit", lambda _, files=files: (files, files))
        assert web_server.max_connections() == expected


# --- the database ---


def code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_a_locked_database_can_be_read_and_writes_are_told_to_wait(
    open_app: Callable[..., Holdfast], tmp_path: Path
) -> None:
    path = tmp_path / "locked.db"
    with Holdfast(path, busy_timeout=0.05) as app, TestClient(app.web(), base_url="http://localhost/api/v1") as api:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        refused = api.post("/queues/q/messages", json={"body": 1})
        assert code(refused) == (503, "StoreBusy") and int(refused.headers["retry-after"]) >= 1
        assert api.get("/jobs").status_code == api.get("/stats").status_code == 200
        other.execute("ROLLBACK")
        other.close()
        eventually(lambda: api.post("/queues/q/messages", json={"body": 1}).status_code == 201)


def test_a_database_that_is_gone_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with Holdfast(folder / "app.db") as app, TestClient(app.web(), base_url="http://localhost/api/v1") as api:
        assert api.post("/queues/q/messages", json={"body": 1}).status_code == 201
        shutil.move(folder, tmp_path / "elsewhere")
        answer = api.post("/queues/q/messages", json={"body": 2})
        assert answer.status_code == 503 and str(folder) in answer.json()["detail"]
        shutil.move(tmp_path / "elsewhere", folder)


@pytest.mark.parametrize("error", [ReadOnlyDatabase("app.db is on a read-only disk"), DiskFull("the disk is full")])
def test_a_database_that_cannot_be_written_is_told(
    api: TestClient, served: Holdfast, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(served.store.jobs, "insert", fail)
    answer = api.post("/queues/q/messages", json={"body": 1})
    assert code(answer) == (503, type(error).__name__)
    assert answer.json()["detail"] == str(error)
    assert api.get("/jobs").status_code == 200
