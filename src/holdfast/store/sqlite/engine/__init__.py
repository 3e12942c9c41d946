"""SQLite as a process uses it: connections, the writer, checkpoints, locks, wake-ups."""
