"""Behaviours, each on every store: a new store is one more entry in `BACKENDS`."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from support.backend import BACKENDS, Backend


@pytest.fixture(params=BACKENDS, ids=lambda kind: kind.name)
def backend(request: pytest.FixtureRequest, tmp_path: Path, template: Callable[..., str]) -> Iterator[Backend]:
    """The database of this test, on each store."""
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
