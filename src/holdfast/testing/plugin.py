"""The pytest plugin.

pytest loads it in every environment with Holdfast installed, so it imports Holdfast only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..supervisor import Holdfast
    from .drain import FakeClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "holdfast_app", "the app that the fixture `holdfast_app` returns, such as myproject.tasks:app", default=""
    )


@pytest.fixture
def holdfast_clock() -> FakeClock:
    """The clock of the fixture `holdfast_app`. It moves only when the test, or `drain`, moves it."""
    from .drain import FakeClock

    return FakeClock()


@pytest.fixture
def holdfast_database(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where the fixture `holdfast_app` keeps its jobs: a path, or the connection or session of the test.

    Define a fixture of this name to put the jobs into the test's own database.
    """
    return tmp_path_factory.mktemp("holdfast") / "test.db"


@pytest.fixture
def holdfast_app(
    request: pytest.FixtureRequest, holdfast_database: Any, holdfast_clock: FakeClock
) -> Iterator[Holdfast]:
    """The app that the setting `holdfast_app` names, or a new one, on the database of this test."""
    from ..supervisor import Holdfast
    from ..supervisor.load import load_app
    from .database import on_connection, on_temporary_database

    named = request.config.getini("holdfast_app")
    if isinstance(holdfast_database, (str, Path)):
        if named:
            with on_temporary_database(load_app(named), holdfast_database, holdfast_clock) as app:
                yield app
            return
        with Holdfast(holdfast_database, clock=holdfast_clock, durability="normal") as app:
            yield app
        return
    if not named:
        raise pytest.UsageError(
            "holdfast_database is a connection, so pytest's setting holdfast_app must name the app"
        )
    with on_connection(load_app(named), holdfast_database, holdfast_clock) as app:
        yield app
