"""What all tests share. Every behaviour is tested on every store: a new store is one more parameter here."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing import FakeClock

STORES = ["sqlite"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a new, empty database."""
    assert request.param == "sqlite"
    return str(tmp_path / "app.db")


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables and no rows: to copy it is faster than to make another."""
    path = tmp_path_factory.mktemp("migrated") / "app.db"
    Holdfast(path).close()
    assert [file.name for file in path.parent.iterdir()] == ["app.db"]
    return path


@pytest.fixture
def open_app(url: str, migrated: Path) -> Iterator[Callable[..., Holdfast]]:
    """Opens the same database as often as it is called, and closes all at the end."""
    opened: list[Holdfast] = []

    def open_one(**options: Any) -> Holdfast:
        if not Path(url).exists():
            shutil.copy(migrated, url)  # with its mode
        opened.append(Holdfast(url, **options))
        return opened[-1]

    yield open_one
    for app in opened:
        app.close()


@pytest.fixture
def app(open_app: Callable[..., Holdfast], clock: FakeClock) -> Holdfast:
    """An app on a clock that stands still."""
    return open_app(clock=clock)
