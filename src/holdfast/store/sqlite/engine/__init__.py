"""How a process uses SQLite: connections, the writer, checkpoints, locks, wake-ups."""
