"""Commits with plain sqlite3 a moment after each line it reads, and says when, on the clock that all processes share.

usage: committer.py DATABASE LOG OFF|NORMAL|FULL
"""

import random
import sqlite3
import sys
import time


def main(database: str, log: str, synchronous: str) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    print("ready", flush=True)
    for line in sys.stdin:
        time.sleep(random.choice([0, 0, random.uniform(0, 0.003)]))
        connection.execute("INSERT INTO seen VALUES (?)", (int(line),))
        print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
