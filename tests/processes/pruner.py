"""Prunes everything that has ended, in steps, and says how many jobs are gone after each that deletes some.

After STEPS of them it waits to be told before it goes on, each time. No step deletes more than ROWS rows.

usage: pruner.py DATABASE LOG ARCHIVE STEPS ROWS
"""

import itertools
import sys

from holdfast import Holdfast, Retention
from holdfast.upkeep import prune


def main(database: str, log: str, archive: str, steps: str, rows: str) -> None:
    prune.FIRST_ROWS = prune.MAX_ROWS = int(rows)
    app, step = Holdfast(database, busy_timeout=60), itertools.count(1)

    def tell(done: int) -> None:
        if done:
            print(f"gone {done}", flush=True)
            if next(step) >= int(steps):
                sys.stdin.readline()

    app.prune(retention=Retention(succeeded=0, failed=0, cancelled=0), archive=archive, progress=tell)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
