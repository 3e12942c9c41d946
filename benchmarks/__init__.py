"""How fast Holdfast is, as ratios to plain sqlite3 and to other queues, measured in the same run: `make bench`."""
