"""The tasks of the worker storm: quick and slow ones, coroutines, some that fail, and some in processes."""

import asyncio
import os
import random
import time

from holdfast import Context, Holdfast, JobError, Retry, Snooze, fixed

LOG = os.environ.get("STORM_LOG", os.devnull)

app = Holdfast(os.environ["STORM_DATABASE"])
out = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def write_down(ctx: Context) -> None:
    os.write(out, b"ran %d %d\n" % (ctx.job_id, ctx.attempt))


@app.task(max_attempts=6, retry=fixed(0))
def quick(ctx: Context) -> int:
    write_down(ctx)
    return 1


@app.task(max_attempts=4, retry=fixed(0))
def slow(ctx: Context) -> None:
    write_down(ctx)
    time.sleep(random.uniform(0.02, 0.4))


@app.task(max_attempts=4, retry=fixed(0.05))
async def waiting(ctx: Context) -> None:
    write_down(ctx)
    await asyncio.sleep(random.uniform(0, 0.3))


@app.task(max_attempts=3, retry=fixed(0.02))
def flaky(ctx: Context) -> Retry | Snooze | None:
    write_down(ctx)
    mood = random.random()
    if mood < 0.3:
        raise JobError("DEPENDENCY:STORM", "lightning")
    return Retry(after=0.05) if mood < 0.4 else Snooze(0.05) if mood < 0.5 else None


@app.task(max_attempts=3, retry=fixed(0), pool="process")
def apart(ctx: Context) -> None:
    write_down(ctx)
    time.sleep(random.uniform(0, 0.1))


KINDS = {quick: 60, slow: 15, waiting: 15, flaky: 9, apart: 1}
