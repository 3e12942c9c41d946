"""Keeping the database small and sound: pruning with an archive, vacuum, and the doctor."""
