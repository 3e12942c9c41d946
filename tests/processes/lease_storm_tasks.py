"""The worker of the lease storm: handlers that write down when they begin and end, by the boot clock."""

import asyncio
import os
import random
import time
from collections.abc import Iterator

from holdfast import Context, Holdfast
from holdfast.clock import boot_ns

app = Holdfast(os.environ["STORM_DATABASE"], durability="normal")


def write(verb: str, ctx: Context) -> None:
    out = os.open(os.environ["STORM_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, b"%s %d %d %d\n" % (verb.encode(), ctx.job_id or 0, ctx.attempt, boot_ns()))
    os.close(out)


@app.middleware
def write_down(ctx: Context) -> Iterator[None]:
    write("begin", ctx)
    try:
        yield
    finally:
        write("end", ctx)


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
    app.worker(concurrency=6, pool=1, lease=float(os.environ["STORM_LEASE"])).run()
