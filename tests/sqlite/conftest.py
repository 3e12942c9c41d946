"""What the tests of the store on SQLite share."""

import sqlite3
from collections.abc import Callable, Iterator
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


@pytest.fixture
def fill(app: Holdfast) -> Callable[[], None]:
    """Insert rows for `conn`. A module may have a `fill` of its own."""

    def rows() -> None:
        inbox = app.queue("inbox", max_attempts=1)
        inbox.send_many(range(300))
        inbox.receive_many(100)
        for message in inbox.receive_many(100):
            message.ack()
        inbox.send_many(range(100), delay=60)
        app.task(name="work")(lambda: None).using(key="k").enqueue()

    return rows


@pytest.fixture(params=["an empty database", "a full one", "one that was analysed"])
def conn(request: pytest.FixtureRequest, url: str, fill: Callable[[], None]) -> Iterator[sqlite3.Connection]:
    """A connection for query plans, which must not depend on the rows. `fill` inserts them."""
    if request.param != "an empty database":
        fill()
    with closing(sqlite3.connect(url)) as connection:
        if request.param == "one that was analysed":
            connection.execute("ANALYZE")
            connection.commit()
    with closing(sqlite3.connect(url)) as connection:
        yield connection
