"""The app that `make demo` runs: mails, thumbnails, a flaky API, a job that kills its worker, and cron.

Run a worker for it yourself:

    HOLDFAST_URL=demo.db holdfast worker sample_app:app
"""

import asyncio
import os
import random
import time

from holdfast import Context, Holdfast, Retry, backoff

app = Holdfast()  # the database that HOLDFAST_URL names


@app.task(queue="mail", max_attempts=5)
def send_mail(to: str) -> str:
    time.sleep(random.uniform(0.02, 0.2))  # a mail server takes its time
    return f"sent to {to}"


@app.task(queue="pictures", pool="process", timeout=10)
def make_thumbnail(ctx: Context, picture: str) -> int:
    """Work for the processor, so it runs in a process of its own."""
    checksum = 0
    for part in range(10):
        checksum = sum(number * number % 7 for number in range(60_000))
        ctx.progress((part + 1) / 10, f"{picture}, part {part + 1}")
    return checksum


@app.task(queue="api", max_attempts=8, retry=backoff(base=0.3, factor=2, cap=3))
async def call_api(order: int) -> str | Retry:
    await asyncio.sleep(random.uniform(0.05, 0.3))
    mood = random.random()
    if mood < 0.25:
        raise ConnectionError("503 from the warehouse")
    return Retry(after=0.5) if mood < 0.35 else f"order {order} booked"


@app.task(queue="risky", max_attempts=2)
def crash() -> None:
    """It takes its whole worker process with it. Others notice at once, and after two attempts it is failed."""
    os._exit(1)


@app.cron("* * * * *", queue="cron")
def tidy() -> None:
    """Once a minute, and once for all the minutes in which no worker was there."""
    time.sleep(0.05)
