"""The store on SQLite, with the standard library's `sqlite3`."""

from .store import SqliteStore, open_store

__all__ = ["SqliteStore", "open_store"]
