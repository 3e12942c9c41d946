"""What only a server has: connections, sessions, and transactions that run at the same time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.postgres_backend import PostgresBackend


@pytest.fixture
def backend(tmp_path: Path, template: Callable[..., str]) -> Iterator[PostgresBackend]:
    """The database of this test."""
    one = PostgresBackend(tmp_path, template(PostgresBackend))
    yield one
    one.close()
