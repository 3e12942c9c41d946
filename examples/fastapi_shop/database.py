"""The shop's database: one SQLite file for its orders and for Holdfast's jobs."""

import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

PATH = Path(os.environ.get("SHOP_DB", "shop.db"))


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[int]  # in cents
    state: Mapped[str] = mapped_column(default="new")


def make_engine(path: Path | str) -> Engine:
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def prepare(connection, _) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # Holdfast checkpoints

    return engine


engine = make_engine(PATH)
SessionLocal = sessionmaker(engine)


def get_session() -> Iterator[Session]:
    """Give each request a session of its own. What it did not commit is rolled back."""
    with SessionLocal() as session:
        yield session
