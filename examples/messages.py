"""Messages from end to end: order, delay, priority, keys, leases, long polling, dead letters."""

import tempfile
import threading
import time
from pathlib import Path

from holdfast import Holdfast


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Holdfast(Path(folder) / "app.db") as app:
        order(app)
        keys(app)
        leases(app)
        long_poll(app)
        dead_letters(app)


def order(app: Holdfast) -> None:
    print("First in, first out within a priority; higher priorities first; delayed ones when they are due.")
    inbox = app.queue("order")
    inbox.send("sent first, due in 0.2 s", delay=0.2)
    inbox.send_many(["sent second", "sent third"])
    inbox.send("sent last, priority 10", priority=10)
    for _ in range(4):
        message = inbox.receive(wait=5)
        assert message is not None
        print(f"   {message.body}")
        message.ack()


def keys(app: Holdfast) -> None:
    print("A key belongs to one unfinished message: sending again gives the id of the one that is there.")
    inbox = app.queue("keys")
    first = inbox.send({"invoice": 7}, key="invoice-7")
    second = inbox.send({"invoice": 7}, key="invoice-7")
    print(f"   the same message: {first == second}")


def leases(app: Holdfast) -> None:
    print("A received message is hidden from others for its visibility. After that, a late ack changes nothing.")
    inbox = app.queue("leases", visibility=30)
    inbox.send("work")
    slow = inbox.receive(visibility=0.1)
    quick = inbox.receive(wait=5)
    assert slow is not None and quick is not None
    print(f"   the slow consumer has attempt {slow.attempt}, the quick one attempt {quick.attempt}")
    print(f"   the slow one's ack: {slow.ack()}; the quick one's extend: {quick.extend(60)}, and ack: {quick.ack()}")


def long_poll(app: Holdfast) -> None:
    print("An empty queue is watched, not polled: receive(wait=5) returns when something is sent.")
    inbox = app.queue("long-poll")
    sender = threading.Timer(0.3, lambda: inbox.send("here I am"))
    began = time.monotonic()
    sender.start()
    message = inbox.receive(wait=5)
    assert message is not None
    print(f"   waited {time.monotonic() - began:.1f} s for {message.body!r}")
    message.ack()
    sender.join()


def dead_letters(app: Holdfast) -> None:
    print("A message that is not settled is delivered again, up to max_attempts, and then kept as a dead letter.")
    inbox = app.queue("fragile", max_attempts=2)
    inbox.send({"parcel": "glass"})
    while (message := inbox.receive()) is not None:
        print(f"   attempt {message.attempt}: given back")
        message.release()
    print(f"   {inbox.stats().failed} dead letter: {inbox.dead_letters()[0].args}")
    print(f"   requeued: {inbox.requeue()}")
    message = inbox.receive()
    assert message is not None
    print(f"   attempt {message.attempt}: acknowledged, {message.ack()}")


if __name__ == "__main__":
    main()
