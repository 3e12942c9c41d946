"""Each test runs in one transaction on a database in memory, which is rolled back at its end."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_folder = tempfile.TemporaryDirectory()
os.environ["SHOP_DB"] = str(Path(_folder.name) / "unused.db")  # importing the shop opens its database

from api import api  # noqa: E402
from database import Base, SessionLocal, engine, get_session  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from sqlalchemy import Connection, create_engine  # noqa: E402
from sqlalchemy.orm import Session  # noqa: E402
from sqlalchemy.pool import StaticPool  # noqa: E402


@pytest.fixture
def connection() -> Iterator[Connection]:
    """Let all sessions of the shop use one connection. Their commits only release a savepoint."""
    in_memory = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with in_memory.connect() as connection:
        Base.metadata.create_all(connection)
        SessionLocal.configure(bind=connection, join_transaction_mode="create_savepoint")
        yield connection
        SessionLocal.configure(bind=engine, join_transaction_mode="conditional_savepoint")
    in_memory.dispose()


@pytest.fixture
def holdfast_database(connection: Connection) -> Connection:
    """Tell the fixture holdfast_app to put the jobs into the test's own transaction."""
    return connection


@pytest.fixture
def session(holdfast_app: object) -> Iterator[Session]:
    yield from get_session()


@pytest.fixture
def client(holdfast_app: object) -> TestClient:
    return TestClient(api)
