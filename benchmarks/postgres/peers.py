"""The same work with other queues for PostgreSQL: procrastinate and pgqueuer, each as its documentation shows."""

import asyncio
from json import dumps
from time import perf_counter
from typing import Any

import procrastinate
import psycopg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import PsycopgDriver
from pgqueuer.types import QueueExecutionMode

from ..measure import rate
from ..workload import BODY

CONCURRENCY = 10


async def _noop(**_: Any) -> None:
    pass


class _Runs:
    """When jobs were run: from the first to the last, without the start and the end of the worker."""

    def __init__(self) -> None:
        self.at: list[float] = []

    async def noop(self, *_: Any) -> None:
        self.at.append(perf_counter())

    def rate(self, jobs: int) -> float:
        assert len(self.at) == jobs
        return (jobs - 1) / (self.at[-1] - self.at[0])


def procrastinate_drain(url: str, jobs: int) -> float:
    async def run() -> float:
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
        runs = _Runs()
        task = app.task(runs.noop, name="noop")
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await task.batch_defer_async(*[{}] * jobs)
            await app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
            return runs.rate(jobs)

    return asyncio.run(run())


def procrastinate_sends(url: str, singles: int, many: int) -> tuple[float, float]:
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    task = app.task(_noop, name="noop")
    with app.open():
        app.schema_manager.apply_schema()
        single = rate(lambda: task.defer(**BODY), singles)
        return single, many * rate(lambda: task.batch_defer(*[BODY] * many), 1)


def pgqueuer_drain(url: str, jobs: int) -> float:
    async def run() -> float:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            driver = PsycopgDriver(connection)
            queries = Queries(driver)
            await queries.install()
            await queries.enqueue(["noop"] * jobs, [b"{}"] * jobs, [0] * jobs)
            app, runs = PgQueuer(driver), _Runs()
            app.entrypoint("noop")(runs.noop)
            await app.run(mode=QueueExecutionMode.drain, batch_size=100)
            return runs.rate(jobs)

    return asyncio.run(run())


def pgqueuer_sends(url: str, singles: int, many: int) -> tuple[float, float]:
    async def run() -> tuple[float, float]:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            queries = Queries(PsycopgDriver(connection))
            await queries.install()
            begin = perf_counter()
            for _ in range(singles):
                await queries.enqueue("noop", dumps(BODY).encode())
            middle = perf_counter()
            await queries.enqueue(["noop"] * many, [dumps(BODY).encode()] * many, [0] * many)
            return singles / (middle - begin), many / (perf_counter() - middle)

    return asyncio.run(run())
