"""What the tests of the store on SQLite share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from support.disks import disk
from support.statement_bench import Bench

__all__ = ["disk"]  # a fixture


@pytest.fixture
def path(url: str) -> Path:
    """A database that nobody has open, with a few jobs in it."""
    with Holdfast(url) as app:
        app.task(name="known")(lambda: None).enqueue()
        app.queue("inbox").send_many(range(5))
    return Path(url)


@pytest.fixture
def bench(tmp_path: Path, migrated: Path) -> Iterator[Bench]:
    path = tmp_path / "app.db"
    path.write_bytes(migrated.read_bytes())
    one = Bench(path)
    with closing(one.connection):
        yield one
