"""The store on SQLite, with the standard library's `sqlite3`. `store` puts it together; some need but a part."""
