"""Open the store that a URL names. A program imports only the store it uses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from ..clock import SystemClock
from ..errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..clock import Clock
    from ..model.diagnosis import Diagnosis, HealthMetrics
    from .protocol import Store

MIN_FREE_BYTES = 16 * 1024 * 1024
DEFAULT_SCHEMA = "public"


def database_url(url: str | os.PathLike[str] | None) -> str:
    """Return the URL or path of a database: what was given, or $HOLDFAST_URL."""
    if url is not None and not isinstance(url, (str, os.PathLike)):
        raise InvalidInput(f"url must be text or a Path, got {type(url).__qualname__}")
    given = os.environ.get("HOLDFAST_URL") if url is None else os.fspath(url)
    if not given:
        raise InvalidInput("no database was given: pass a path such as Holdfast('app.db'), or set HOLDFAST_URL")
    if not isinstance(given, str):
        raise InvalidInput("url must be text or a Path, got bytes")
    return given


def is_postgres(url: str) -> bool:
    return url.lower().startswith(("postgresql://", "postgres://"))


def require_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ModuleNotFoundError as error:
        raise InvalidInput("PostgreSQL needs another package: pip install 'holdfast[postgres]'") from error


def _refuse_schema(schema: str | None) -> None:
    if schema is not None:
        raise InvalidInput("schema is for PostgreSQL only: leave it out with SQLite, and pass prefix= instead")


class UnopenedDatabase(Protocol):
    """A database that is read without opening it as an app does: it may be damaged, locked or outdated."""

    def diagnose(self, deep: bool = False) -> Diagnosis: ...

    def health_metrics(self, since_minute: int, queues: Sequence[str] | None = None) -> HealthMetrics: ...


def inspect_database(url: str, *, prefix: str, schema: str | None, clock: Clock | None = None) -> UnopenedDatabase:
    """Return what the doctor sees of a database, in whatever state it is."""
    if is_postgres(url):
        require_driver()
        from .postgres.store import UnopenedServer

        return UnopenedServer(url, prefix, schema or DEFAULT_SCHEMA, clock)
    _refuse_schema(schema)
    from .sqlite.diagnose import OfflineDatabase

    return OfflineDatabase(url, prefix, clock or SystemClock(), MIN_FREE_BYTES)


def open_store(
    url: str | os.PathLike[str] | None,
    *,
    min_free_bytes: int | None,
    guard_connections: bool | None,
    schema: str | None,
    notify: bool | None,
    clock: Any,
    **settings: Any,
) -> Store:
    """Open the database. None: the option was not given."""
    given = database_url(url)
    if is_postgres(given):
        require_driver()
        for name, value in {"min_free_bytes": min_free_bytes, "guard_connections": guard_connections}.items():
            if value is not None:
                raise InvalidInput(f"{name} is for SQLite only: leave it out with PostgreSQL")
        from .postgres.store import open_store as open_postgres

        notifies = notify is not False
        return open_postgres(given, schema=schema or DEFAULT_SCHEMA, notify=notifies, clock=clock, **settings)
    _refuse_schema(schema)
    if notify is not None:
        raise InvalidInput("notify is for PostgreSQL only: leave it out with SQLite")
    from .sqlite.store import open_store as open_sqlite

    return open_sqlite(
        given,
        min_free_bytes=MIN_FREE_BYTES if min_free_bytes is None else min_free_bytes,
        guard_connections=guard_connections is not False,
        clock=clock or SystemClock(),
        **settings,
    )
