"""Tasks whose effects are in the same database file, and which can be killed at any of their steps.

What a job leaves in the table `effects` is stored in the transaction with which it succeeds. So a row is there
exactly if the job has succeeded, and says by which attempt.
"""

import os
from collections.abc import Callable
from typing import Any

from traps import Trap, reach, set_trap

from holdfast import Context, Holdfast, Then, fixed
from holdfast.errors import LeaseLost

VISIBILITY_SECONDS = 0.02  # of a message that a killed consumer held
EFFECTS = "CREATE TABLE IF NOT EXISTS effects (job_id INTEGER NOT NULL, attempt INTEGER NOT NULL)"

app = Holdfast(os.environ["VICTIM_DATABASE"], min_free_bytes=0, busy_timeout=60)
inbox = app.queue("inbox", visibility=VISIBILITY_SECONDS, max_attempts=20)
out = os.open(os.environ["VICTIM_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
retried = app.task(max_attempts=20, retry=fixed(0))


def begin(job_id: int | None, attempt: int, trap: Trap | None) -> None:
    os.write(out, b"began %d %d\n" % (job_id or 0, attempt))
    if trap is not None and attempt <= trap.attempts:
        set_trap(trap)
    reach("start")


def leave_effect(tx: Any, job_id: int | None, attempt: int) -> None:
    tx.execute("INSERT INTO effects (job_id, attempt) VALUES (?, ?)", (job_id, attempt))


def just_complete(ctx: Context, trap: Trap | None = None, result: Any = None) -> None:
    begin(ctx.job_id, ctx.attempt, trap)
    with ctx.complete(result) as tx:
        leave_effect(tx, ctx.job_id, ctx.attempt)


@retried
def write(ctx: Context, trap: Trap | None = None) -> Any:
    just_complete(ctx, trap, "written")


@retried
def offspring(ctx: Context, parent: int) -> Any:
    """Enqueued in a transaction that completes its parent."""
    just_complete(ctx)


@retried
def last(ctx: Context) -> Any:
    """A chain ends with it."""
    just_complete(ctx, result="the end")


@retried
def go_on(ctx: Context, trap: Trap | None = None) -> Any:
    just_complete(ctx, trap, Then(last))


@retried
def return_then(ctx: Context, trap: Trap | None = None) -> Any:
    """The one task without an effect: its success is the worker's to store."""
    begin(ctx.job_id, ctx.attempt, trap)
    return Then(last)


@retried
def breed(ctx: Context, trap: Trap | None = None) -> Any:
    begin(ctx.job_id, ctx.attempt, trap)
    with ctx.complete() as tx:
        offspring.using(conn=tx).enqueue(parent=ctx.job_id)
        leave_effect(tx, ctx.job_id, ctx.attempt)


def all_steps(ctx: Context, trap: Trap | None) -> None:
    begin(ctx.job_id, ctx.attempt, trap)
    reach("before complete")
    with ctx.complete() as tx:
        leave_effect(tx, ctx.job_id, ctx.attempt)
        reach("after the first write")
        offspring.using(conn=tx).enqueue(parent=ctx.job_id)
        reach("after an enqueue")
        tx.result = Then(last)
        tx.execute("UPDATE effects SET attempt = attempt WHERE job_id = ?", (ctx.job_id,))
        reach("end of the block")
    reach("after the block")
    ctx.progress(1)
    reach("before return")


@retried
def do_all(ctx: Context, trap: Trap | None = None) -> Any:
    all_steps(ctx, trap)


@retried
async def do_all_later(ctx: Context, trap: Trap | None = None) -> Any:
    all_steps(ctx, trap)


@app.task(max_attempts=20, retry=fixed(0), pool="process")
def do_all_apart(ctx: Context, trap: Trap | None = None) -> Any:
    all_steps(ctx, trap)


@retried
def after_others(ctx: Context) -> Any:
    begin(ctx.job_id, ctx.attempt, None)
    with ctx.complete([str(result) for result in ctx.blocker_results]) as tx:
        leave_effect(tx, ctx.job_id, ctx.attempt)


@retried
def on_done(ctx: Context) -> Any:
    just_complete(ctx)


@retried
def on_success(ctx: Context) -> Any:
    just_complete(ctx)


# --- what is enqueued before a worker is killed: behind whatever was left by those before it ---


def alone(task: Any) -> Callable[[Trap | None], object]:
    return lambda trap: task.using(priority=-1).enqueue(trap)


def send(trap: Trap | None) -> None:
    inbox.send(None if trap is None else trap.number)


def two_blockers(trap: Trap | None) -> None:
    """The trap is set by one of two that a third job waits for."""
    with app.transaction() as tx:
        blockers = [
            write.using(priority=-1, conn=tx).enqueue(),
            return_then.using(priority=-1, conn=tx).enqueue(trap),
        ]
        after_others.using(after=blockers, conn=tx).enqueue()


def members(trap: Trap | None) -> None:
    with app.transaction() as tx, app.batch(on_done=on_done, on_success=on_success, conn=tx) as batch:
        write.using(batch=batch, priority=-1, conn=tx).enqueue()
        return_then.using(batch=batch, priority=-1, conn=tx).enqueue()
        write.using(batch=batch, priority=-2, conn=tx).enqueue(trap)


def knot(trap: Trap | None) -> None:
    """A member of a batch that goes on as a chain for which another member waits."""
    with app.transaction() as tx, app.batch(on_done=on_done, on_success=on_success, conn=tx) as batch:
        first = do_all.using(batch=batch, priority=-1, conn=tx).enqueue(trap)
        after_others.using(batch=batch, after=first, conn=tx).enqueue()


SHAPES: dict[str, Callable[[Trap | None], object]] = {
    "write": alone(write),
    "go_on": alone(go_on),
    "return_then": alone(return_then),
    "breed": alone(breed),
    "two_blockers": two_blockers,
    "members": members,
    "knot": knot,
    "do_all": alone(do_all),
    "do_all_later": alone(do_all_later),
    "do_all_apart": alone(do_all_apart),
    "message": send,
}


def prepare() -> None:
    """Whatever can be done before a fork."""
    with app.transaction() as tx:
        tx.execute(EFFECTS)
    for task in app.tasks.values():
        task.check_early()


def work(shapes: list[tuple[str, Trap | None]]) -> None:
    """Enqueue these, and run whatever there is until nothing is left to do."""
    for shape, trap in shapes:
        SHAPES[shape](trap)
    while inbox.stats().total:
        consume()
    app.worker(until_idle=True, concurrency=1, pool=2).run()


def consume() -> None:
    message = inbox.receive(wait=1)
    if message is None:
        return
    begin(message.id, message.attempt, None if message.body is None else Trap("statement", message.body))
    try:
        with message.ack_with() as tx:
            offspring.using(conn=tx).enqueue(parent=message.id)
            leave_effect(tx, message.id, message.attempt)
    except LeaseLost:  # a slow machine
        return
