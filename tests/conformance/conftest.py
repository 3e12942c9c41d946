"""Behaviours, each on every store: a new store is one more entry in `BACKENDS`."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from support.backend import Backend, SqliteBackend
from support.postgres_backend import PostgresBackend

BACKENDS: list[type[Backend]] = [SqliteBackend, PostgresBackend]

# What runs on PostgreSQL in each `make test`. `make test-postgres` runs everything.
ALWAYS_ON_POSTGRES = {
    *("test_guarantees.py", "test_messages.py", "test_keys.py", "test_plain_sql.py", "test_transactions.py"),
    *("test_history.py", "test_statistics.py", "test_dead_letters.py", "test_retrying.py"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes too long for each run."""
    items[:] = [item for item in items if not _is_left_out(item)]


def _is_left_out(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("backend") is not PostgresBackend:
        return False
    return os.environ.get("HOLDFAST_POSTGRES") != "all" and item.path.name not in ALWAYS_ON_POSTGRES


@pytest.fixture(params=BACKENDS, ids=lambda kind: kind.name)
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, template: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    """The database of this test, on each store."""
    request.param.relax(monkeypatch)
    one = request.param(tmp_path, template(request.param))
    yield one
    one.close()


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
