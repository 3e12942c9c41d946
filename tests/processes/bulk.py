"""Sends many messages at once, batch after batch, and writes down each batch that was acknowledged.

In the batch that it is told to stop in, it says so and waits for ever, with that many of its messages handed over.

usage: bulk.py DATABASE LOG SIZE STOP_AT        (STOP_AT 0: do not stop)
"""

import os
import sys
from collections.abc import Iterator

from holdfast import Holdfast

QUEUE = "bulk"


def main(database: str, log: str, size: str, stop_at: str) -> None:
    queue = Holdfast(database, busy_timeout=60).queue(QUEUE)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    batch = 0
    while True:
        print(f"batch {batch}", flush=True)
        ids = queue.send_many(bodies(batch, int(size), int(stop_at)))
        assert len(ids) == int(size)
        os.write(out, b"stored %d\n" % batch)
        batch += 1


def bodies(batch: int, size: int, stop_at: int) -> Iterator[int]:
    for n in range(size):
        if stop_at and n == stop_at:
            print("stopped", flush=True)
            sys.stdin.readline()
        yield batch


if __name__ == "__main__":
    main(*sys.argv[1:])
