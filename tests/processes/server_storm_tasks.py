"""The tasks of the storms on a server, and a connection to it that is tried until the server is there."""

import logging
import os
import random
import time
from collections.abc import Callable

from holdfast import Context, Holdfast, fixed
from holdfast.errors import LeaseLost, StoreError

logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of pipelines that were cut off
MAX_ATTEMPTS = 1000
BUSY_SECONDS = 3.0


def open_app(url: str, write: Callable[[str], None]) -> Holdfast:
    """Open the database, also while the server is away."""
    while True:
        try:
            app = Holdfast(url, busy_timeout=BUSY_SECONDS)
        except StoreError:
            time.sleep(0.1)
            continue
        define(app, write)
        return app


def define(app: Holdfast, write: Callable[[str], None]) -> None:
    def ran(ctx: Context) -> None:
        write(f"ran {ctx.job_id} {ctx.attempt}")

    @app.task(name="quick", max_attempts=MAX_ATTEMPTS, retry=fixed(0))
    def quick(ctx: Context, token: str) -> None:
        ran(ctx)

    @app.task(name="slow", max_attempts=MAX_ATTEMPTS, retry=fixed(0))
    def slow(ctx: Context, token: str) -> None:
        ran(ctx)
        time.sleep(random.uniform(0.02, 0.4))

    @app.task(name="effect", max_attempts=MAX_ATTEMPTS, retry=fixed(0))
    def effect(ctx: Context, token: str) -> None:
        ran(ctx)
        try:
            with ctx.complete() as tx:
                tx.execute("INSERT INTO effects (job_id, attempt) VALUES (%s, %s)", (ctx.job_id, ctx.attempt))
        except LeaseLost:
            write(f"refused {ctx.job_id} {ctx.attempt}")
            raise

    @app.task(name="hold", max_attempts=MAX_ATTEMPTS, retry=fixed(0))
    def hold(ctx: Context, file: str) -> None:
        """Run until the test makes this file."""
        ran(ctx)
        while not os.path.exists(file):
            time.sleep(0.02)


def writer(log: str) -> Callable[[str], None]:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return lambda line: os.write(out, f"{line}\n".encode()) and None
