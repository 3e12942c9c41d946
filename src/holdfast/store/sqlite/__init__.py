"""The store on SQLite, with the standard library's `sqlite3`. `store.py` assembles it from the other modules."""
