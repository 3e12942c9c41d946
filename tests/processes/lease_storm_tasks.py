"""The worker of the lease storm: it writes down when it claims, and its handlers when they begin and end.

All times are of the boot clock.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from typing import Any

from holdfast import Context, Holdfast
from holdfast.clock import boot_ns
from holdfast.model.job import SettledAndClaimed

app = Holdfast(os.environ["STORM_DATABASE"], durability="normal")


def write(verb: str, job: int, attempt: int, at: int) -> None:
    out = os.open(os.environ["STORM_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, b"%s %d %d %d\n" % (verb.encode(), job, attempt, at))
    os.close(out)


def write_claims() -> None:
    """Write down from when on the worker could hold each job: a stop may come before the handler begins."""
    settle_and_claim = app.store.jobs.settle_and_claim

    def observed(*arguments: Any) -> SettledAndClaimed:
        before = boot_ns()
        found = settle_and_claim(*arguments)
        for one in found.claimed:
            write("claim", one.id, one.attempt, before)
        return found

    app.store.jobs.settle_and_claim = observed  # type: ignore[method-assign]


@app.middleware
def write_down(ctx: Context) -> Iterator[None]:
    write("begin", ctx.job_id or 0, ctx.attempt, boot_ns())
    try:
        yield
    finally:
        write("end", ctx.job_id or 0, ctx.attempt, boot_ns())


@app.task(retry=0)
def sleep_a_little() -> None:
    time.sleep(random.uniform(0, 0.3))


@app.task(retry=0)
async def sleep_later() -> None:
    await asyncio.sleep(random.uniform(0, 0.3))


@app.task(retry=0, pool="process")
def sleep_apart() -> None:
    time.sleep(random.uniform(0, 0.3))


def main() -> None:
    if os.environ["STORM_FAULT"]:
        from holdfast.store.sqlite.engine.worker_locks import LockFile

        LockFile.is_free = lambda self, slot: slot.number not in self._held  # type: ignore[method-assign]
    write_claims()
    app.worker(concurrency=6, pool=1, lease=float(os.environ["STORM_LEASE"])).run()
