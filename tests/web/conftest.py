"""An app with a few jobs, and clients of its HTTP API."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.web import Users, auth
from support.web_users import HASH


@pytest.fixture
def served(app: Holdfast) -> Holdfast:
    @app.task(queue="math", max_attempts=2)
    def add(a: int, b: int) -> int:
        return a + b

    return app


@pytest.fixture
def connect(served: Holdfast) -> Iterator[Callable[..., TestClient]]:
    """Make a client of a server with these options. Its URLs begin below /api/v1."""
    clients: list[TestClient] = []

    def make(**options: Any) -> TestClient:
        base = options.pop("base_url", "http://localhost/api/v1")
        clients.append(TestClient(served.web(**options), base_url=base))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def api(connect: Callable[..., TestClient]) -> TestClient:
    return connect()


@pytest.fixture
def users(tmp_path: Path) -> Users:
    """Three users with the names of their roles, each with a password and a token that is their name."""
    users = Users(tmp_path / "users.json")
    with users.edit() as found:
        for role in auth.Role.__members__:
            found[role] = auth.User(role, HASH, {"test": auth.token_hash(role)})
    return users
