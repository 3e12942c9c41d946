"""Enqueues until it is killed, and writes down what it was told of each: an id, or a typed error.

After ConnectionLost, which says that nothing was stored, it tries again. After OutcomeUnknown it tries again with the
same key, or, without one, leaves it in doubt.

usage: server_storm_producer.py URL LOG NAME
"""

import random
import sys
import time
from contextlib import suppress
from itertools import count

from server_storm_tasks import open_app, writer

from holdfast.errors import OutcomeUnknown, StoreError

BACKLOG = 300
TASKS = {"quick": 6, "slow": 1, "effect": 3}


def main(url: str, log: str, name: str) -> None:
    write = writer(log)
    app = open_app(url, write)
    backlog = 0
    for number in count():
        (task,) = random.choices(list(TASKS), list(TASKS.values()))
        token = f"{name}-{number}"
        has_key = random.random() < 0.5
        options = {"key": token, "key_window": 3600} if has_key else {}
        while True:
            try:
                id = app.tasks[task].using(**options).enqueue(token).id
            except StoreError as error:
                write(f"error {type(error).__name__}")
                if isinstance(error, OutcomeUnknown) and not has_key:
                    write(f"doubt {token}")
                    break
                time.sleep(0.02)
            else:
                write(f"sent {id} {token}")
                break
        backlog += 1
        while backlog >= BACKLOG:
            with suppress(StoreError):
                backlog = sum(queue.ready for queue in app.queues())
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
