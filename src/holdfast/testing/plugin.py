"""The pytest plugin.

pytest loads it in every environment with Holdfast installed, so it imports Holdfast only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..supervisor import Holdfast
    from .clock import FakeClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("holdfast_app", "the app that the fixture `app` returns, such as myproject.tasks:app", default="")


@pytest.fixture
def holdfast_clock() -> FakeClock:
    """The clock of the fixture `app`. It moves only when the test, or `drain`, moves it."""
    from .clock import FakeClock

    return FakeClock()


@pytest.fixture
def holdfast_app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, holdfast_clock: FakeClock
) -> Iterator[Holdfast]:
    """The app that the setting `holdfast_app` names, or a new one, on a temporary database of this test."""
    from ..supervisor import Holdfast
    from ..supervisor.load import load_app
    from .temporary import on_temporary_database

    database = tmp_path_factory.mktemp("holdfast") / "test.db"
    if named := request.config.getini("holdfast_app"):
        with on_temporary_database(load_app(named), database, holdfast_clock) as app:
            yield app
        return
    with Holdfast(database, clock=holdfast_clock, durability="normal") as app:
        yield app


@pytest.fixture
def app(holdfast_app: Holdfast) -> Holdfast:
    """The same as `holdfast_app`, for projects that have no fixture `app` of their own."""
    return holdfast_app
