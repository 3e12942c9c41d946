"""What only a server has: connections, sessions, and transactions that run at the same time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.postgres_backend import PostgresBackend, see_the_whole_log


@pytest.fixture
def backend(
    tmp_path: Path, template: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresBackend]:
    """The database of this test."""
    see_the_whole_log(monkeypatch)
    one = PostgresBackend(tmp_path, template(PostgresBackend))
    yield one
    one.close()
