"""The tasks of the worker storm: quick and slow ones, coroutines, some that fail, and some in processes.

And what ties them together: chains, jobs that wait for others, batches, and effects that commit with their job.
"""

import asyncio
import os
import random
import time
from typing import Any

from holdfast import Context, Fail, Holdfast, JobError, Retry, Snooze, Then, fixed, group
from holdfast.errors import LeaseLost

LOG = os.environ.get("STORM_LOG", os.devnull)

app = Holdfast(os.environ["STORM_DATABASE"], busy_timeout=60)
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


@app.task
def doubtful(ctx: Context) -> Fail | None:
    write_down(ctx)
    return Fail("DEPENDENCY:STORM") if random.random() < 0.5 else None


@app.task(max_attempts=3, retry=fixed(0), pool="process")
def apart(ctx: Context) -> None:
    write_down(ctx)
    time.sleep(random.uniform(0, 0.1))


def complete(ctx: Context, result: Any = None) -> Any:
    """With an effect, and now and then after some time, in which the job may have become another's."""
    time.sleep(random.choice([0] * 6 + [0.01, 0.2]))
    try:
        with ctx.complete(result) as tx:
            tx.execute("INSERT INTO effects (job_id, attempt) VALUES (?, ?)", (ctx.job_id, ctx.attempt))
            if ctx.task == "breed":
                offspring.using(conn=tx).enqueue(ctx.job_id)
            if ctx.task == "member" and result:
                member.using(conn=tx, batch=ctx.batch).enqueue(result - 1)
    except LeaseLost:
        os.write(out, b"refused %d %d\n" % (ctx.job_id, ctx.attempt))
        raise


@app.task(max_attempts=4, retry=fixed(0))
def effect(ctx: Context) -> Any:
    write_down(ctx)
    complete(ctx)


@app.task(max_attempts=4, retry=fixed(0))
def breed(ctx: Context) -> Any:
    write_down(ctx)
    complete(ctx)


@app.task(max_attempts=4, retry=fixed(0))
def offspring(ctx: Context, parent: int) -> Any:
    write_down(ctx)
    complete(ctx)


@app.task(max_attempts=3, retry=fixed(0), pool="process")
def effect_apart(ctx: Context) -> Any:
    write_down(ctx)
    complete(ctx)


@app.task(max_attempts=4, retry=fixed(0))
def link(ctx: Context, left: int) -> Any:
    """Its worker makes it go on."""
    write_down(ctx)
    if random.random() < 0.1:
        raise JobError("DEPENDENCY:STORM", "lightning")
    return Then(strong_link, left - 1) if left else "the end"


@app.task(max_attempts=4, retry=fixed(0))
async def strong_link(ctx: Context, left: int) -> Any:
    """It makes itself go on."""
    write_down(ctx)
    complete(ctx, Then(link, left - 1) if left else "the end")


@app.task(max_attempts=4, retry=fixed(0))
def gather(ctx: Context) -> Any:
    write_down(ctx)
    complete(ctx, len(ctx.blocker_results))


@app.task(max_attempts=4, retry=fixed(0))
def member(ctx: Context, more: int = 0) -> Any:
    """Of a batch, to which it may add another."""
    write_down(ctx)
    complete(ctx, more)


@app.task(max_attempts=9, retry=fixed(0))
def on_done(ctx: Context) -> Any:
    write_down(ctx)
    complete(ctx)


@app.task(max_attempts=9, retry=fixed(0))
def on_success(ctx: Context) -> Any:
    write_down(ctx)
    complete(ctx)


# --- what producers enqueue: each returns the ids of what is on disk ---


def graph() -> list[int]:
    """Two wait for several, and one for those two; each minds it in a way of its own if one of them fails."""
    others = [link.s(random.randint(0, 3)), effect.s(), breed.s()]
    first = [doubtful.s(), *random.sample(others, random.randint(0, 2))]
    policies = random.choices(["hold", "fail", "cancel", "run"], k=3)
    middle = group(*(gather.using(on_blocker_failure=policy).s() for policy in policies[:2]))
    return [job.id for job in app.pipeline(group(*first), middle, gather.using(on_blocker_failure=policies[2]).s())]


def batch() -> list[int]:
    """What it adds comes one by one, so that some end before it is sealed."""
    with app.batch(on_done=on_done, on_success=on_success) as made:
        jobs = [member.using(batch=made).enqueue(random.choice([0, 0, 2])) for _ in range(random.randint(0, 3))]
        jobs += [link.using(batch=made).enqueue(random.randint(0, 2)) for _ in range(random.randint(0, 2))]
        jobs += [gather.using(batch=made, after=jobs, on_blocker_failure="fail").enqueue()] if jobs else []
    return [job.id for job in jobs]


def chain() -> list[int]:
    return [random.choice([link, strong_link]).enqueue(random.randint(0, 5)).id]


SHAPES = {graph: 20, batch: 10, chain: 15}
KINDS = {quick: 40, slow: 15, waiting: 15, flaky: 9, apart: 1, effect: 20, breed: 10, effect_apart: 2}
