"""Runs a worker with tasks that complete themselves in processes of its pool, until it is stopped.

usage: completing_worker.py DATABASE LOG [OPTION=NUMBER …]  (options of app.worker, such as pool=2 max_jobs=3)
"""

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, Then
from holdfast.errors import LeaseLost

sys.path.append(str(Path(__file__).parent.parent))
import support.any_speed  # noqa: F401
from support.append_log import append_line

logging.disable()  # what a worker has to say is no complaint here
app = Holdfast(sys.argv[1], min_free_bytes=0, busy_timeout=60)
LOG = sys.argv[2]


def note(*words: object) -> None:
    append_line(LOG, *words)


def wait_for(file: str) -> None:
    """Until the test makes this file."""
    while not os.path.exists(file):
        time.sleep(0.005)


def write(ctx: Context, tx: Any) -> None:
    tx.execute("INSERT INTO ledger VALUES (?, ?)", (ctx.job_id, ctx.attempt))


@app.task
def last(word: str) -> str:
    return word


@app.task(pool="process")
def last_in_pool(word: str) -> list[Any]:
    return [len(word), word[:3]]


@app.task(pool="process", retry=0)
def together(ctx: Context, failures: int = 0) -> Any:
    """The writes, a child and the continuation, with as many failures as are wanted."""
    with ctx.complete() as tx:
        write(ctx, tx)
        last.using(conn=tx, tags=["child"]).enqueue("child")
        tx.result = Then(last_in_pool, "é\0next")
        if ctx.attempt <= failures:
            raise ConnectionError("no line")


@app.task(pool="process")
def go_on(size: int) -> Then:
    return Then(last_in_pool, "x" * size)


@app.task(pool="process", retry=0)
def too_late(ctx: Context) -> None:
    """Loses its job before it completes it."""
    app.jobs.complete(ctx.job_id or 0, "by hand")
    try:
        with ctx.complete("too late") as tx:
            write(ctx, tx)
    except LeaseLost:
        note("lost", "too_late", ctx.job_id)
        raise


@app.task(pool="process", retry=0)
def die(ctx: Context, where: str) -> Any:
    """Its first attempt takes its process with it."""
    with ctx.complete("completed") as tx:
        write(ctx, tx)
        if where == "inside" and ctx.attempt == 1:
            os._exit(7)
    if where == "after":
        os._exit(7)


@app.task(pool="process", retry=0)
def hold(ctx: Context, where: str, file: str) -> Any:
    """Its first attempt stays until the file is there."""
    stays = ctx.attempt == 1
    with ctx.complete("completed") as tx:
        write(ctx, tx)
        note("inside", "hold", ctx.job_id, os.getpid())
        if where == "inside" and stays:
            wait_for(file)
    if where == "after" and stays:
        wait_for(file)


@app.task(pool="process")
def returns_late(ctx: Context) -> Any:
    with ctx.complete("in time"):
        pass
    return Then(last, "too late")


@app.task(pool="process")
def look_around(ctx: Context) -> list[Any]:
    return [list(ctx.blocker_results), ctx.batch.id, ctx.batch.progress().total]


def main(*given: str) -> None:
    options = {name: int(value) for name, value in (one.split("=") for one in given)}
    worker = app.worker(**options)
    note("worker", worker.id, os.getpid())
    report = worker.run()
    note("report", *(f"{name}={getattr(report, name)}" for name in report.__struct_fields__))


if __name__ == "__main__":
    main(*sys.argv[3:])
