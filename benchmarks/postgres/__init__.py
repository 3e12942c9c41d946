"""Benchmarks of the PostgreSQL store: `make bench-postgres`."""
