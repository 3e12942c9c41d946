"""Workers in network namespaces, as on two machines: one is killed, or, with `make storm-postgres`, cut off.

This needs root and `ip netns`. Elsewhere it is skipped, and says so.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import Holdfast
from support.child_processes import SCRIPTS
from support.effort import THOROUGH
from support.postgres_server import PostgresServer, start_server, stop_server
from support.running_worker import eventually

SUBNET = "10.213.77"


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _has_namespaces() -> bool:
    name = f"hf-probe-{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None or not _run("ip", "netns", "add", name):
        return False
    return _run("ip", "netns", "del", name)


if not _has_namespaces():
    warnings.warn("no network namespaces here: workers on two networks are NOT tested", stacklevel=1)
    pytest.skip("needs root and ip netns", allow_module_level=True)


class Host:
    """A network namespace, with a cable to the bridge."""

    def __init__(self, name: str, bridge: str, address: str) -> None:
        self.name, self._inner, self.outer = name, f"{name}i", f"{name}o"
        for command in (
            f"ip netns add {name}",
            f"ip link add {self.outer} type veth peer name {self._inner}",
            f"ip link set {self._inner} netns {name}",
            f"ip link set {self.outer} master {bridge} up",
            f"ip -n {name} addr add {address}/24 dev {self._inner}",
            f"ip -n {name} link set {self._inner} up",
        ):
            subprocess.run(command.split(), check=True)

    def plug(self, is_in: bool) -> None:
        subprocess.run(["ip", "link", "set", self.outer, "up" if is_in else "down"], check=True)

    def start(self, url: str, log: Path) -> subprocess.Popen[bytes]:
        script = str(SCRIPTS / "server_storm_worker.py")
        return subprocess.Popen(["ip", "netns", "exec", self.name, sys.executable, script, url, str(log)])

    def remove(self) -> None:
        _run("ip", "netns", "del", self.name)
        _run("ip", "link", "del", self.outer)


@contextmanager
def two_hosts() -> Iterator[list[Host]]:
    bridge = f"hf{os.getpid() % 100_000}"
    with ExitStack() as stack:
        subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
        stack.callback(lambda: _run("ip", "link", "del", bridge))
        subprocess.run(["ip", "addr", "add", f"{SUBNET}.1/24", "dev", bridge], check=True)
        subprocess.run(["ip", "link", "set", bridge, "up"], check=True)
        hosts = []
        for number in (1, 2):
            hosts.append(Host(f"{bridge}h{number}", bridge, f"{SUBNET}.{number + 1}"))
            stack.callback(hosts[-1].remove)
        yield hosts


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    one = start_server({"listen_addresses": "*", "unix_socket_permissions": "0777"})
    with (one.folder / "data" / "pg_hba.conf").open("a", encoding="utf-8") as file:
        file.write(f"host all all {SUBNET}.0/24 trust\n")
    yield one
    stop_server(one)


def lines(log: Path, verb: str) -> list[list[str]]:
    text = log.read_text() if log.exists() else ""
    return [line.split() for line in text.splitlines() if line.startswith(f"{verb} ")]


def test_the_jobs_of_a_host_that_is_gone_run_on_the_other(server: PostgresServer, tmp_path: Path) -> None:
    port = free_port()
    server.stop(signal.SIGINT)
    with (server.folder / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write(f"port = {port}\n")
    server.url = server.url + f"&port={port}"
    server.start()
    server_url = f"postgresql://holdfast@{SUBNET}.1:{port}/postgres"
    go_on = tmp_path / "go-on"
    with Holdfast(server.url, busy_timeout=60) as app, two_hosts() as hosts:
        app.task(name="hold", max_attempts=5)(hold).enqueue_many([{"file": str(go_on)}] * 8)
        logs = [tmp_path / "one.log", tmp_path / "two.log"]
        processes = [host.start(server_url, log) for host, log in zip(hosts, logs, strict=True)]
        try:
            eventually(lambda: all(len(lines(log, "ran")) == 4 for log in logs), "both run their share")
            if THOROUGH:
                # Its sessions end when the server has found out, after about 15 seconds; then its locks are free.
                hosts[0].plug(False)
            else:
                processes[0].kill()
            eventually(lambda: app.jobs.count(status="ready") == 4, "the jobs are recovered")
            hosts[0].plug(True)
            go_on.touch()
            eventually(lambda: app.jobs.count(status="succeeded") == 8)
            if THOROUGH:
                eventually(lambda: lines(logs[0], "lost"), "the first host learns that it lost them")
        finally:
            for process in processes:
                process.kill()
                process.wait()
        claimed = app.store.database.rows(  # type: ignore[attr-defined]
            "SELECT job_id, attempt FROM holdfast_events WHERE event = 'claimed'"
        )
        assert len(claimed) == len(set(claimed)) == 12
        recovered = app.store.database.rows("SELECT count(*) FROM holdfast_events WHERE event = 'recovered'")  # type: ignore[attr-defined]
        assert recovered == [(4,)]


def hold(file: str) -> None:
    """Declares the task of processes/server_storm_tasks.py."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port
