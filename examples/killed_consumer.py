"""A consumer is killed, its message comes back, a bad one is set aside and its story told.

Everything happens in a temporary folder that is removed at the end.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import Holdfast

QUEUE = "payments"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder) / "demo.db")


def demonstrate(path: Path) -> None:
    names = {os.getpid(): "the producer"}
    with Holdfast(path) as app:
        payments = app.queue(QUEUE, max_attempts=3)

        say("1. Three messages are sent. Each one is on the disk when send() returns.")
        first = payments.send({"order": 1001, "amount": 30})
        payments.send({"order": 1002, "amount": 12})
        poisonous = payments.send({"order": 1003, "amount": "twelve"})
        show_stats(app)

        say("2. Consumer A, a process of its own, takes the first message, and is killed with SIGKILL.")
        with start_consumer(path, "A") as consumer:
            names[consumer.pid] = "consumer A"
            relay(consumer, until="received")
            consumer.send_signal(signal.SIGKILL)
            consumer.wait()
        print(f"   consumer A is dead (exit code {consumer.returncode}). It has acknowledged nothing.")
        show_stats(app)

        say("3. Consumer B starts. It handles what it can. A's message comes back when A's second is over.")
        with start_consumer(path, "B") as consumer:
            names[consumer.pid] = "consumer B"
            relay(consumer)
        if consumer.returncode != 0:
            raise SystemExit(f"consumer B failed with exit code {consumer.returncode}")
        show_stats(app)

        say("4. The message that failed three times is a dead letter: kept, and delivered no more.")
        for letter in payments.dead_letters():
            print(f"   message {letter.id}: {letter.args}")
            print(f"   {letter.error_code}: {letter.error_detail}")

        say("5. The bug is fixed. An operator requeues the dead letter, and it is handled.")
        print(f"   requeued: {payments.requeue(actor='operator ada')}")
        message = payments.receive(wait=5)
        if message is None or not message.ack():
            raise SystemExit("the requeued message was not delivered")
        print(f"   message {message.id} received, attempt {message.attempt}, and acknowledged")
        show_stats(app)

        say(f"6. Nothing of this was lost. The history of message {first}, whose consumer was killed:")
        show_history(app, first, names)
        print(f"\n   and of message {poisonous}, the dead letter:")
        show_history(app, poisonous, names)
    print("\nThat is all. The database was temporary and is gone now.")


@contextmanager
def start_consumer(path: Path, name: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, __file__, name, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        try:
            yield consumer
        except BaseException:
            consumer.kill()
            raise


def relay(consumer: "subprocess.Popen[str]", until: str | None = None) -> None:
    """Print what the consumer prints, to its end or until a line says the word."""
    assert consumer.stdout is not None
    for line in consumer.stdout:
        print(f"   {line.rstrip()}", flush=True)
        if until is not None and until in line:
            return


def say(text: str) -> None:
    time.sleep(0.7)  # so that a person can follow
    print(f"\n{text}", flush=True)


def show_stats(app: Holdfast) -> None:
    stats = app.queue(QUEUE).stats()
    waiting = stats.ready + stats.scheduled
    print(f"   the queue: {waiting} waiting, {stats.running} in flight, {stats.failed} dead")


def show_history(app: Holdfast, job_id: int, names: dict[int, str]) -> None:
    entries = app.jobs.history(job_id)
    for entry in entries:
        if entry.kind == "event":
            seconds = (entry.at - entries[0].at).total_seconds()
            print(f"   {seconds:+8.3f} s  {entry.name:<10} attempt {entry.attempt}  by {name_of(entry.actor, names)}")
        else:
            end = entry.detail.get("finished_at")
            lasted = "not ended" if end is None else f"{(end - entry.at).total_seconds():.3f} s"
            reason = f", {entry.detail['error_code']}" if "error_code" in entry.detail else ""
            print(f"                 attempt {entry.attempt} ended: {entry.name} after {lasted}{reason}")


def name_of(actor: str | None, names: dict[int, str]) -> str:
    """An actor is the id of a process with something random, or the name that an operator gave."""
    pid = (actor or "").partition("-")[0]
    return names.get(int(pid), str(actor)) if pid.isdecimal() else str(actor)


# --- the consumers: this file again, in a process of its own ---------------------------------------


def consume(name: str, path: str) -> None:
    with Holdfast(path) as app:
        payments = app.queue(QUEUE, max_attempts=3)
        # Consumer A will not live to acknowledge anything, so it takes its message for one second only.
        visibility = 1 if name == "A" else 30
        while (message := payments.receive(visibility=visibility, wait=10)) is not None:
            report(f"consumer {name} received message {message.id}, attempt {message.attempt}: {message.body}")
            if name == "A":
                time.sleep(60)  # hard at work, until it is killed
            try:
                charge(message.body)
            except ValueError as error:
                report(f"consumer {name} cannot handle message {message.id} ({error}) and gives it back")
                message.release(delay=0.2)
            else:
                report(f"consumer {name} acknowledged message {message.id}: {message.ack()}")
            stats = payments.stats()
            if stats.total == stats.failed:
                return


def charge(payment: dict[str, Any]) -> None:
    if not isinstance(payment["amount"], int):
        raise ValueError("the amount is not a number")


def report(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        consume(sys.argv[1], sys.argv[2])
    else:
        main()
