"""Sends as fast as it can, and says how long it waited at worst.

It begins when it is told to on stdin, so that all of its kind begin together, and ends when it is told to.

usage: writer.py DATABASE LOG
"""

import json
import os
import select
import sys
import time

from holdfast import Holdfast

QUEUE = "writers"


def main(database: str, log: str) -> None:
    queue = Holdfast(database, busy_timeout=60).queue(QUEUE)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    print("ready", flush=True)
    sys.stdin.readline()
    now = time.monotonic()
    worst, sent = 0.0, 0
    while sent == 0 or not select.select([sys.stdin], [], [], 0)[0]:
        id = queue.send({"n": sent})
        worst, now = max(worst, time.monotonic() - now), time.monotonic()
        os.write(out, b"sent %d\n" % id)
        sent += 1
    print(json.dumps({"sent": sent, "worst": worst}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
