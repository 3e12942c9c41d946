"""Checks of the database: what is wrong, what it means, and the command that fixes it."""
