"""`holdfast workers`."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from support.running_worker import PATIENCE_SECONDS, RunningWorker, drain, eventually

Run = Callable[..., Result]
Data = Callable[..., Any]

KEYS = [
    "id", "state", "alive", "running", "concurrency", "pid", "host", "queues", "started_at", "heartbeat_at",
    "ended_at", "ending", "limits", "version", "memory", "stop_at",
]  # fmt: skip

DIES = """
import os, sys
from holdfast import Holdfast
app = Holdfast(sys.argv[1])
@app.task
def die(): os._exit(9)
die.enqueue()
app.worker().run()
"""


@pytest.fixture
def work(app: Holdfast) -> Any:
    @app.task(queue="mail")
    def work() -> None: ...

    return work


def test_a_live_worker_is_listed_with_all_fields(app: Holdfast, on: Run, data: Data) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task(queue="mail")
    def wait() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    wait.enqueue()
    with RunningWorker(app, queues="mail,other", concurrency=3) as running:
        assert begun.wait(PATIENCE_SECONDS)
        header, line = on("workers").stdout.splitlines()
        (found,) = data("workers")["workers"]
        go_on.set()
    assert header.split() == ["WORKER", "STATE", "RUNNING", "HEARTBEAT", "PID", "HOST", "UP", "QUEUES"]
    assert line.split()[:3] == [running.worker.id, "alive", "1/3"] and line.endswith("mail, other")
    assert set(found) == set(KEYS)
    assert (found["state"], found["alive"], found["running"], found["pid"]) == ("alive", True, 1, os.getpid())


def test_ended_workers_are_listed_on_request(app: Holdfast, work: Any, on: Run, data: Data) -> None:
    work.enqueue()
    drain(app)
    result = on("workers")
    assert (result.exit_code, result.stdout) == (0, "") and "1 worker ended: add --all" in result.stderr
    assert data("workers")["workers"] == []
    (found,) = data("workers", "--all")["workers"]
    assert (found["state"], found["alive"], found["running"]) == ("stopped", False, 0) and found["ended_at"]
    assert "stopped" in on("workers", "--all").stdout and "all" in on("workers", "-a").stdout.splitlines()[1]


def test_a_dead_worker_is_lost_whatever_its_heartbeat(app: Holdfast, url: str, data: Data) -> None:
    ended = subprocess.run([sys.executable, "-c", DIES, url], timeout=PATIENCE_SECONDS)
    assert ended.returncode == 9
    (found,) = eventually(lambda: data("workers")["workers"])
    assert (found["state"], found["alive"], found["ended_at"]) == ("lost", False, None)


def test_no_workers(app: Holdfast, on: Run) -> None:
    result = on("workers")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No workers are running. Start one: holdfast worker module:app.\n"


def test_a_worker_is_asked_to_stop_by_its_id(app: Holdfast, on: Run, work: Any) -> None:
    with RunningWorker(app) as running:
        eventually(app.workers, "the worker is registered")
        id = running.worker.id
        done = on("workers", "stop", id, "--actor", "ada", "--reason", "new kernel")
        assert (done.exit_code, done.stdout) == (0, f"Asked worker {id} to stop.\n")
        running.report()
    again = on("workers", "stop", id)
    assert (again.exit_code, again.stdout) == (1, f"Worker {id} has ended, or was asked before.\n")
    unknown = on("workers", "stop", "nobody")
    assert unknown.exit_code == 4
    assert "there is no worker 'nobody'" in unknown.stderr
