"""Short ways to say what many behaviours need: plain SQL, a worker's claim, the names of a job's events."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.clock import SECOND
from holdfast.model import Claimed


@pytest.fixture
def sql(app: Holdfast, url: str) -> Callable[..., list[Any]]:
    """Runs one statement as a program that knows nothing of Holdfast would, and commits it."""

    def run(statement: str, values: Any = ()) -> list[Any]:
        connection = sqlite3.connect(url)
        try:
            with connection:
                return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    return run


@pytest.fixture
def claim(app: Holdfast) -> Callable[..., Claimed]:
    """Takes the next job of a task, as a worker does."""

    def take(*tasks: str, lease: float = 30, worker: str = "worker-1") -> Claimed:
        names = tasks or tuple(app.tasks)
        (claimed,) = app.store.claim_tasks(None, names, 1, round(lease * SECOND), worker)
        return claimed

    return take


@pytest.fixture
def events(app: Holdfast) -> Callable[[int], list[str]]:
    """The names of a job's events, in order."""

    def names(job_id: int) -> list[str]:
        return [entry.name for entry in app.store.history(job_id) if entry.kind == "event"]

    return names


@pytest.fixture
def live(open_app: Callable[..., Holdfast]) -> Holdfast:
    """An app on the real clock."""
    return open_app()


@pytest.fixture(params=["sync", "async"])
def define(app: Holdfast, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a task of a function of the Context, as a plain function and as a coroutine."""

    def make(body: Callable[[Context], Any], **options: Any) -> Any:
        def job(ctx: Context) -> Any:
            return body(ctx)

        async def async_job(ctx: Context) -> Any:
            await asyncio.sleep(0)
            return body(ctx)

        return app.task(name="job", **options)(job if request.param == "sync" else async_job)

    return make
