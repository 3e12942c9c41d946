"""What the tests of the store on SQLite share."""

from pathlib import Path

import pytest

from holdfast import Holdfast
from support.disks import disk

__all__ = ["disk"]  # a fixture


@pytest.fixture
def path(url: str) -> Path:
    """A database that nobody has open, with a few jobs in it."""
    with Holdfast(url) as app:
        app.task(name="known")(lambda: None).enqueue()
        app.queue("inbox").send_many(range(5))
    return Path(url)
