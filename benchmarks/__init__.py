"""How fast Holdfast is, as ratios to plain sqlite3 measured in the same run: `make bench`."""
