"""Prunes everything that has ended, and writes down how many are gone after each step.

usage: pruner.py DATABASE LOG ARCHIVE
"""

import os
import sys

from holdfast import Holdfast, Retention


def main(database: str, log: str, archive: str) -> None:
    app = Holdfast(database, busy_timeout=60)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    print("ready", flush=True)
    sys.stdin.readline()
    rules = Retention(succeeded=0, failed=0, cancelled=0)
    app.prune(retention=rules, archive=archive, progress=lambda done: os.write(out, b"gone %d\n" % done) and None)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
