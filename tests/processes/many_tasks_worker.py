"""Runs a worker with tasks of many kinds, and writes down what they do, until it is stopped.

usage: many_tasks_worker.py DATABASE LOG [OPTION=NUMBER …]  (options of app.worker, such as lease=1 concurrency=2)

With polls=0 it waits for wake-ups and looks at the database at no other time. With SLOW_START_SECONDS in the
environment each process of its pool takes so long to start. With HOOKS it has hooks that write down their call; those
of the pool raise, or hang at the end, if its value is raise or hang.
"""

import asyncio
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast

sys.path.append(str(Path(__file__).parent.parent))
from support.any_speed import stop_polling
from support.append_log import append_line

app = Holdfast(sys.argv[1], min_free_bytes=0, busy_timeout=60)
LOG = sys.argv[2]


def note(*words: object) -> None:
    append_line(LOG, *words)


class Listener(logging.Handler):
    """What a worker has to say is no complaint here; that it is about to stop is written down."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("stopping"):
            note("stopping")


def wait_for(file: str) -> None:
    """Until the test makes this file."""
    while not os.path.exists(file):
        time.sleep(0.005)


if HOOKS := os.environ.get("HOOKS"):

    @app.on_worker_start
    def start() -> None:
        note("start", multiprocessing.current_process().name, os.getpid())

    @app.on_worker_start(process="pool")
    def prepare() -> None:
        if HOOKS == "raise":
            raise RuntimeError("no model")

    @app.on_worker_stop
    def stop() -> None:
        note("stop", multiprocessing.current_process().name, os.getpid())

    @app.on_worker_stop(process="pool")
    def hang() -> None:
        if HOOKS == "hang":
            time.sleep(3600)

    @app.after_job
    def clean_up() -> None:
        note("after", multiprocessing.current_process().name, os.getpid())


@app.middleware
def write_down(ctx: Context) -> Iterator[None]:
    note("begin", ctx.task, ctx.job_id, ctx.attempt, os.getpid(), time.monotonic())
    try:
        result = yield
    except BaseException as error:
        note("raised", ctx.task, ctx.job_id, ctx.attempt, type(error).__name__)
        raise
    note("end", ctx.task, ctx.job_id, ctx.attempt, result)


@app.task
def quick(n: int = 0) -> int:
    return n


@app.task
def hold(ctx: Context, file: str) -> str:
    """Stays until the file is there, whoever cancels it."""
    wait_for(file)
    return f"attempt {ctx.attempt}"


@app.task
async def hold_later(ctx: Context, file: str) -> str:
    while not os.path.exists(file):
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note("ignored", "hold_later", ctx.job_id, ctx.attempt)
    return f"attempt {ctx.attempt}"


@app.task
def hold_first(ctx: Context, file: str) -> str:
    """Only the first of its attempts that runs stays."""
    if not os.path.exists(first := f"{file}.{ctx.job_id}"):
        Path(first).touch()
        note("holding", "hold_first", ctx.job_id)
        wait_for(file)
    return f"attempt {ctx.attempt}"


@app.task
def hog(seconds: float) -> float:
    """A regular expression that holds the interpreter for so long; with each letter it takes twice as long."""
    length, took = 19, hold_the_interpreter(19)
    while took < seconds / 2:
        length, took = length + 1, took * 2
    while (took := hold_the_interpreter(length)) < seconds:
        length += 1
    return took


def hold_the_interpreter(length: int) -> float:
    before = time.monotonic()
    re.match(r"(a+)+$", "a" * length + "b")
    return time.monotonic() - before


@app.task
def leave_an_orphan(ctx: Context, file: str) -> None:
    """A process that outlives its parent, and waits for the file as well."""
    if ctx.attempt == 1:
        script = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
        orphan = subprocess.Popen([sys.executable, "-c", script, file])
        note("orphan", orphan.pid, ctx.job_id)
        wait_for(file)


@app.task
def fork(times: int) -> list[int]:
    """As multiprocessing does it by default on Linux before Python 3.14."""
    context, codes = multiprocessing.get_context("fork"), []
    for _ in range(times):
        child = context.Process(target=quick)
        child.start()
        child.join()
        codes.append(child.exitcode or 0)
    return codes


@app.task
def die(code: int) -> None:
    os._exit(code)


@app.task(pool="process")
def die_in_pool(code: int) -> None:
    os._exit(code)


@app.task(pool="process")
def pid_in_pool() -> int:
    return os.getpid()


@app.task(pool="process")
def eat(ctx: Context) -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * 4_000_000)


@app.task(pool="process")
def hold_in_pool(ctx: Context, file: str) -> str:
    ctx.progress(0.5, "waiting")
    wait_for(file)
    return f"attempt {ctx.attempt}"


@app.task(pool="process")
def fail_in_pool() -> None:
    raise ConnectionError("no line")


@app.task(pool="process")
def print_args(text: str, number: int = 3) -> list[Any]:
    return [text, number]


def main(*given: str) -> None:
    logger = logging.getLogger("holdfast")
    logger.addHandler(Listener())
    logger.setLevel(logging.INFO)
    options = {name: float(value) for name, value in (one.split("=") for one in given)}
    if options.pop("polls", 1) == 0:
        stop_polling()
    for name in ("concurrency", "pool", "max_jobs", "max_memory"):
        if name in options:
            options[name] = int(options[name])
    worker = app.worker(**options)
    note("worker", worker.id, os.getpid())
    report = worker.run()
    note("report", *(f"{name}={getattr(report, name)}" for name in report.__struct_fields__))


if __name__ == "__mp_main__":  # a process of the pool
    note("starting", os.getpid())
    time.sleep(float(os.environ.get("SLOW_START_SECONDS", "0")))
if __name__ == "__main__":
    main(*sys.argv[3:])
