"""The load of the soak: an app with tasks of every kind, and the processes that use it.

SOAK_DATABASE names the database. `work`, `produce` and `consume` are the processes, which run until they are killed.
`work_watched` is a worker that also writes down how much memory it has in use.
"""

import asyncio
import ctypes
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, JobError, Retention, Snooze, Then, fixed

KEPT_SECONDS = 60
JOBS_PER_SECOND = 50.0  # with everything else that happens, a third of a processor
EFFECTS_KEPT = 2000
MAX_READY = 500

app = Holdfast(
    os.environ["SOAK_DATABASE"],
    busy_timeout=60,  # a process may be stopped inside a transaction, on a machine that is busy
    retention=Retention(
        succeeded=KEPT_SECONDS,
        failed=KEPT_SECONDS,
        cancelled=KEPT_SECONDS,
        rollups=KEPT_SECONDS,
        failures=KEPT_SECONDS,
        audit=KEPT_SECONDS,
    ),
)


def create_tables() -> None:
    with app.transaction() as tx:
        for statement in (
            "CREATE TABLE effects (job_id INTEGER NOT NULL, attempt INTEGER NOT NULL)",
            "CREATE INDEX effects_job ON effects (job_id)",
            "CREATE TABLE ledger (total INTEGER NOT NULL, trimmed INTEGER NOT NULL, trimmed_id INTEGER NOT NULL)",
            "INSERT INTO ledger VALUES (0, 0, 0)",
        ):
            tx.execute(statement)


@app.task(queue="probes")
def probe() -> None: ...


@app.task(retry=fixed(0.1))
def pay(ctx: Context) -> Any:
    """Leave an effect, exactly once, and now and then delete the oldest ones, all in one transaction."""
    with ctx.complete() as tx:
        tx.execute("INSERT INTO effects (job_id, attempt) VALUES (?, ?)", (ctx.job_id, ctx.attempt))
        tx.execute("UPDATE ledger SET total = total + 1")
        if ctx.job_id % 50 == 0:
            oldest = "SELECT job_id FROM effects ORDER BY job_id DESC LIMIT 1 OFFSET ?"
            (last,) = tx.execute(f"SELECT coalesce(max(job_id), 0) FROM ({oldest})", (EFFECTS_KEPT,)).fetchone()  # noqa: S608
            gone = tx.execute("DELETE FROM effects WHERE job_id <= ?", (last,)).rowcount
            tx.execute("UPDATE ledger SET trimmed = trimmed + ?, trimmed_id = max(trimmed_id, ?)", (gone, last))


@app.task(max_attempts=3, retry=fixed(0.2))
def flaky() -> Any:
    mood = random.random()
    if mood < 0.2:
        raise JobError("DEPENDENCY:SOAK", "rain")
    return Snooze(0.5) if mood < 0.3 else "x" * random.choice([10, 5000])


@app.task
async def wait_a_little() -> None:
    await asyncio.sleep(random.uniform(0, 0.1))


@app.task(pool="process")
def apart() -> int:
    return 1


@app.task
def link(left: int) -> Any:
    return Then(link, left - 1) if left else "done"


@app.task
def large(data: str) -> int:
    return len(data)


def on_schedule() -> None: ...


for number in range(5):
    app.cron("* * * * *", name=f"every-minute-{number}")(on_schedule)


def produce() -> None:
    inbox = app.queue("inbox")
    while True:
        began = time.monotonic()
        while app.jobs.count(status="ready") > MAX_READY:  # the machine is too busy for this load
            time.sleep(0.5)
        for task, count in ((pay, 40), (flaky, 15), (wait_a_little, 15), (apart, 2)):
            task.enqueue_many([{}] * count)
        link.enqueue(random.randint(0, 4))
        large.enqueue("x" * random.choice([1000, 100_000]))
        inbox.send_many([{"n": n} for n in range(20)])
        with app.batch(on_done=wait_a_little) as batch:
            for _ in range(3):
                flaky.using(batch=batch).enqueue()
        app.jobs.cancel(pay.using(delay=30).enqueue().id)
        app.jobs.list(status="failed", limit=5)
        time.sleep(max(0.0, 100 / JOBS_PER_SECOND - (time.monotonic() - began)))


def consume() -> None:
    inbox = app.queue("inbox", visibility=2)
    while True:
        for message in inbox.receive_many(10, wait=5):
            message.ack()


class _MallocInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()  # noqa: SIM905
    ]


def memory_in_use() -> dict[str, float]:
    """Return what this process holds: objects of Python, and bytes from malloc, which SQLite uses, too.

    What malloc keeps of freed memory is not in it. That is nothing that a program could leak.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # another library than glibc
        return {"blocks": float(sys.getallocatedblocks()), "malloc_bytes": 0.0}
    ask.restype = _MallocInfo
    info = ask()
    return {"blocks": float(sys.getallocatedblocks()), "malloc_bytes": float(info.uordblks + info.hblkhd)}


def memory_file() -> Path:
    return Path(f"{os.environ['SOAK_DATABASE']}.memory")


def work_watched() -> None:
    def write_down() -> None:
        part = memory_file().with_suffix(".part")
        while True:
            part.write_text(json.dumps(memory_in_use()))
            part.rename(memory_file())
            time.sleep(1)

    threading.Thread(target=write_down, daemon=True).start()
    work()


def work() -> None:
    app.worker(concurrency=8, pool=1, lease=2).run()
