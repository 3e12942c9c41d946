"""Use an app of the program under test on a temporary database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from .. import validate
from ..app import App
from ..clock import Clock
from ..errors import InvalidInput
from ..store.protocol import StatementObserver
from .clock import FakeClock
from .drain import store_declared

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
    if not isinstance(app, App):
        raise InvalidInput(f"on_temporary_database: app must be a Holdfast, got {validate.shown(app)}")
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with ExitStack() as stack:
        if path is None:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-"))) / "test.db"
        yield stack.enter_context(on_database(app, path, clock or FakeClock()))


@contextmanager
def on_database(
    app: A, path: str | os.PathLike[str], clock: Clock, observer: StatementObserver | None = None
) -> Iterator[A]:
    """Use an app on another database and clock within the block. observer: sees its statements."""
    from random import Random

    own = app.store, app.clock, app.random
    with ExitStack() as stack:
        app.clock, app.random = clock, Random(0)  # the same jitter in every run
        try:
            # A test need not survive a power cut, and must not write to the program's own blob store.
            app.store = app._open(
                path, durable_level="NORMAL", migrate=True, min_free_bytes=0, blobs=None, observer=observer
            )
            stack.callback(app.store.close)
            store_declared(app)
            yield app
        finally:
            app.store, app.clock, app.random = own
