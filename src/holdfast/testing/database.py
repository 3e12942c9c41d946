"""Use an app of the program under test on a database of the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from .. import validate
from ..app import App
from ..clock import Clock
from ..errors import InvalidInput
from ..store.protocol import StatementObserver
from .drain import FakeClock, store_declared

A = TypeVar("A", bound=App)


@contextmanager
def on_temporary_database(
    app: A, path: str | os.PathLike[str] | None = None, clock: Clock | None = None
) -> Iterator[A]:
    """Within the block, the app with its tasks and queues uses another database.

    The schedules of `@app.cron` are stored there at once, as a worker does at its start.

    path: the database; by default a new one in a temporary folder, which is removed at the end.
    clock: by default a new FakeClock.
    """
    with ExitStack() as stack:
        if path is None:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-"))) / "test.db"
        yield stack.enter_context(on_database(_checked(app, "on_temporary_database"), path, clock or FakeClock()))


@contextmanager
def on_connection(app: A, conn: Any, clock: Clock | None = None) -> Iterator[A]:
    """Within the block, the app uses the database of this connection, inside the transaction that is open there.

    What the test stores is rolled back together with its jobs. The database may be in memory. The code under test
    must use the same connection, and the jobs are run with `drain` or `inline`, not by a worker.

    conn: a `sqlite3.Connection`, a session or connection of SQLAlchemy, or Django's. If it has no open transaction,
        one is begun, and rolled back at the end; except in autocommit mode, where each change is committed. The
        tables are created in it, and are gone at the end.
    clock: by default a new FakeClock.
    """
    validate.connection(conn)
    with TemporaryDirectory(prefix="holdfast-") as folder:  # for blobs
        place = Path(folder) / "test.db"
        with on_database(_checked(app, "on_connection"), place, clock or FakeClock(), conn=conn):
            yield app


def _checked(app: A, function: str) -> A:
    if not isinstance(app, App):
        raise InvalidInput(f"{function}: app must be a Holdfast, got {validate.shown(app)}")
    return app


@contextmanager
def on_database(
    app: A, path: str | os.PathLike[str], clock: Clock, observer: StatementObserver | None = None, conn: Any = None
) -> Iterator[A]:
    """Use an app on another database and clock within the block. observer: sees its statements."""
    own = app.store, app.clock, app.random
    with ExitStack() as stack:
        app.clock, app.random = clock, Random(0)  # the same jitter in every run
        try:
            # A test need not survive a power cut, and must not write to the program's own blob store.
            test_settings = {"durable_level": "NORMAL", "migrate": True, "min_free_bytes": 0, "blobs": None}
            app.store = app._open(path, clock, **test_settings, observer=observer, conn=conn)
            stack.callback(app.store.close)
            store_declared(app)
            yield app
        finally:
            app.store, app.clock, app.random = own
