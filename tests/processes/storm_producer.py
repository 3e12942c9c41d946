"""Enqueues until it is killed, and writes down every id it was given before it goes on.

usage: storm_producer.py DATABASE LOG
"""

import os
import random
import sys
import time

BACKLOG = 400  # more than this need not wait: it would only make the end long


def main(database: str, log: str) -> None:
    os.environ["STORM_DATABASE"] = database
    from storm_tasks import KINDS, SHAPES, app

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        (task,) = random.choices(list(KINDS), list(KINDS.values()))
        if random.random() < 0.3:
            (shape,) = random.choices(list(SHAPES), list(SHAPES.values()))
            ids = shape()
        elif random.random() < 0.2:
            ids = task.enqueue_many([{}] * random.randint(2, 30))
        else:
            ids = [task.using(delay=random.choice([0, 0, 0, 0.05]), priority=random.choice([0, 1])).enqueue().id]
        os.write(out, b"".join(b"sent %d\n" % id for id in ids))
        while sum(queue.ready for queue in app.queues()) > BACKLOG:
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
