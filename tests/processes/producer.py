"""Sends until it is killed, and writes down every id it was given before it sends the next.

usage: producer.py DATABASE LOG
"""

import os
import random
import sys
import time

from holdfast import Holdfast

QUEUE = "storm"
MAX_ATTEMPTS = 4
BACKLOG = 300  # more than this need not wait: it would only make the end long


def main(database: str, log: str) -> None:
    inbox = Holdfast(database, busy_timeout=60).queue(QUEUE, max_attempts=MAX_ATTEMPTS)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    count = 0
    while True:
        count += 1
        body = {"from": os.getpid(), "n": count}
        if count % 10 == 0:
            ids = inbox.send_many([body] * random.randint(2, 20), priority=random.choice([0, 1]))
        else:
            ids = [inbox.send(body, delay=random.choice([0, 0, 0, 0.05]))]
        os.write(out, b"".join(b"sent %d\n" % id for id in ids))
        if count % 10 == 0 and inbox.stats().ready > BACKLOG:
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
