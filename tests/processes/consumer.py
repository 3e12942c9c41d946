"""Receives until it is killed, and writes down what it got and how each settling went.

Most messages are acknowledged at once. Some are given back, some extended, and with some it dawdles until their
visibility has ended, as a slow consumer does: then somebody else gets them and it must not settle them any more.

usage: consumer.py DATABASE LOG [calm]       (calm: acknowledge everything at once)
"""

import os
import random
import sys
import time

from producer import MAX_ATTEMPTS, QUEUE

from holdfast import Holdfast, Message

VISIBILITY = 0.3


def main(database: str, log: str, manner: str = "") -> None:
    inbox = Holdfast(database, busy_timeout=60).queue(QUEUE, visibility=VISIBILITY, max_attempts=MAX_ATTEMPTS)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        messages = inbox.receive_many(random.randint(1, 5), wait=1)
        os.write(out, b"".join(b"got %d %d\n" % (one.id, one.attempt) for one in messages))
        for message in messages:
            os.write(out, settle(message, 1 if manner == "calm" else random.random()).encode())


def settle(message: Message[object], mood: float) -> str:
    if mood < (0.02 if message.attempt == 1 else 0.25):  # so that late settles meet newer attempts that still run
        time.sleep(VISIBILITY * 1.5)
    elif mood < 0.05:
        return f"release {message.id} {message.attempt} {message.release(random.choice([0, 0.05]))}\n"
    elif mood < 0.08:
        return f"extend {message.id} {message.attempt} {message.extend(random.choice([0, VISIBILITY]))}\n"
    return f"ack {message.id} {message.attempt} {message.ack()}\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
