"""Metrics and traces of worker processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.contrib.otel import instrument
from support.running_worker import PATIENCE_SECONDS, eventually
from support.scraping import fetch

TASKS = """
import os
import opentelemetry.sdk.trace as sdk
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from holdfast import Holdfast
from holdfast.contrib.otel import instrument

provider = sdk.TracerProvider()
file = open("spans.txt", "a")
exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))

app = Holdfast("app.db")
instrument(app, metrics=False, tracer_provider=provider)

@app.task
def work() -> int:
    return os.getpid()

@app.task(pool="process", queue="heavy")
def compute() -> int:
    return os.getpid()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `holdfast worker` processes, which end with the test."""
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    started: list[subprocess.Popen[str]] = []

    def one(*options: str, **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "holdfast", "worker", "tasks:app", *options]
        env = {**os.environ, **environment}
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=env)
        started.append(process)
        return process

    yield one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def address(process: "subprocess.Popen[str]") -> str:
    """Return the URL of the metrics, from the log of the worker."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serving metrics at (\S+)", line):
            return found[1]
    pytest.fail("it ended without a word of metrics")


def test_a_worker_serves_metrics_until_it_stops(start: Start, tmp_path: Path) -> None:
    worker = start("--metrics-port", "0", "--concurrency", "3")
    url = address(worker)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
    eventually(lambda: fetch(url).value("holdfast_workers", state="alive") == 1)
    with Holdfast(tmp_path / "app.db") as app:
        app.task(name="work")(lambda: None).enqueue()
    eventually(lambda: fetch(url).value("holdfast_attempts_total", outcome="succeeded") == 1)
    assert fetch(url)["holdfast_worker_capacity"] == 3
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0
    with pytest.raises(OSError):
        fetch(url)


def test_of_several_processes_the_first_serves_the_metrics_of_all(start: Start) -> None:
    crew = start("--processes", "2", "--metrics-port", "0")
    url = address(crew)
    eventually(lambda: fetch(url).value("holdfast_workers", state="alive") == 2)
    crew.send_signal(signal.SIGTERM)
    _, said = crew.communicate(timeout=PATIENCE_SECONDS)
    assert crew.returncode == 0 and "serving metrics at" not in said, "no other one served them"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_in_use_ends_the_command_with_an_error(start: Start, processes: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = start("--metrics-port", port, "--processes", processes)
        _, said = refused.communicate(timeout=PATIENCE_SECONDS)
    assert refused.returncode == 2
    assert f"Error: metrics cannot be served at 127.0.0.1 port {port}" in said and "Traceback" not in said


@pytest.mark.parametrize("processes", ["1", "2"])
def test_without_the_extra_the_command_says_what_to_install(start: Start, tmp_path: Path, processes: str) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')")
    refused = start("--metrics-port", "0", "--processes", processes, PYTHONPATH=str(tmp_path))
    _, said = refused.communicate(timeout=PATIENCE_SECONDS)
    assert refused.returncode == 2
    assert said.startswith("Error: --metrics-port: ") and "pip install 'holdfast[prometheus]'" in said


def test_a_trace_crosses_to_a_worker_and_to_a_process_of_its_pool(start: Start, tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    tracer = provider.get_tracer("test")
    with Holdfast(tmp_path / "app.db") as app:
        instrument(app, metrics=False, tracer_provider=provider)
        with tracer.start_as_current_span("request") as request:
            jobs = [
                app.task(name="work")(_pid).enqueue(),
                app.task(name="compute", queue="heavy")(_pid).enqueue(),
            ]
        worker = start("--until-idle", "--pool", "1")
        worker.communicate(timeout=PATIENCE_SECONDS)
        pids = {job.refresh().result for job in jobs}
        assert len(pids) == 2 and os.getpid() not in pids
    lines = (tmp_path / "spans.txt").read_text().splitlines()
    spans: list[Any] = [msgspec.json.decode(line) for line in lines]
    assert sorted(span["name"] for span in spans) == ["process default", "process heavy"]
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{request.get_span_context().trace_id:032x}"}


def _pid() -> int:
    return os.getpid()
