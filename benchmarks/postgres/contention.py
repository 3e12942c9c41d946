"""What several do at the same time: consumers, worker processes, and an enqueue beside an open transaction."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, Rates, Target, at_most, seconds, take_turns
from ..workload import noop
from .drains import drain
from .server import ROOT, Server

ENQUEUES, MESSAGES, JOBS = 1_000, 4_000, 20_000
SLICES = 10
SAMPLE_SECONDS = 0.002
NOTES = """\
- **Open transaction:** 1,000 single enqueues while another connection is in a transaction that has enqueued a job of
  the same task, and 1,000 without, in one database, by turns of 100. **Consumers:** processes that receive and
  acknowledge one message at a time. **Locks:** every 2 ms, which of the sessions of four draining worker processes
  wait for a lock. **NOTIFY:** what arrives at a connection that listens during that drain.
"""
CONSUMER = """
import sys
from holdfast import Holdfast
with Holdfast(sys.argv[1]) as app:
    queue = app.queue("messages")
    print("ready", flush=True)
    sys.stdin.readline()
    while (message := queue.receive()) is not None:
        message.ack()
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    enqueues, messages = effort.of(ENQUEUES, least=100), effort.of(MESSAGES, least=400)
    turns = {
        "four": lambda: _consume(server, messages, 4),
        "one": lambda: _consume(server, messages, 1),
    }
    with server.database() as url:
        sides = Rates({"beside": [], "alone": []}, "/s")
        for _ in range(effort.rounds):
            _enqueue_by_turns(url, enqueues, sides)
        yield sides.ratio("enqueue beside an open transaction ÷ without", "beside", "alone", Target(0.9))
    rates = take_turns(effort.rounds, "/s", turns)
    yield rates.ratio("four consumers of one queue ÷ one", "four", "one", Target(2))
    yield from _drain_watched(server, effort.of(JOBS, least=2_000))


def _enqueue_by_turns(url: str, count: int, rates: Rates) -> None:
    """Enqueue a slice beside an open transaction, then one without it, and so on."""
    took = {"beside": 0.0, "alone": 0.0}
    with Holdfast(url) as app, psycopg.connect(url) as other:
        task = app.task(noop)
        for _ in range(10):
            task.enqueue()
        for number in range(SLICES):
            for side in ("beside", "alone") if number % 2 else ("alone", "beside"):
                if side == "beside":
                    task.using(conn=other).enqueue()
                took[side] += seconds(lambda: task.enqueue(), count // SLICES)
                other.rollback()
    for side, total in took.items():
        rates.of[side].append(count / total)


def _consume(server: Server, messages: int, consumers: int) -> float:
    with server.database() as url:
        with Holdfast(url) as app:
            app.queue("messages").send_many([{}] * messages)
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", CONSUMER, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(consumers)
        ]
        for one in processes:
            assert one.stdout is not None and one.stdout.readline()
        begin = perf_counter()
        for one in processes:
            _start(one)
        for one in processes:
            one.wait()
        return messages / (perf_counter() - begin)


def _start(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def _drain_watched(server: Server, jobs: int) -> Iterator[Figure]:
    with server.database() as url:
        Holdfast(url).close()
        with _watched(url) as seen:
            drain(url, jobs, 4)
    waiting = 100 * seen.waiting / max(1, seen.sessions)
    name = "drain, four processes: samples that wait for a lock"
    yield Figure(name, f"of {seen.sessions:,}", "", waiting, None, at_most(1, "%"))
    told = 100 * seen.notifications / jobs
    yield Figure("drain, four processes: NOTIFYs", f"{seen.notifications:,}", "", told, None, at_most(1, "% of jobs"))


class _Seen:
    sessions = waiting = notifications = 0


@contextmanager
def _watched(url: str) -> Iterator[_Seen]:
    """Take samples of the sessions, and count notifications, until the end of the block."""
    seen, done = _Seen(), threading.Event()
    query = """SELECT count(*), count(*) FILTER (WHERE wait_event_type = 'Lock') FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"""

    def watch() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.add_notify_handler(lambda _: setattr(seen, "notifications", seen.notifications + 1))
            connection.execute('LISTEN "public.holdfast_"')
            while not done.is_set():
                (row,) = connection.execute(query).fetchall()
                seen.sessions, seen.waiting = seen.sessions + row[0], seen.waiting + row[1]
                sleep(SAMPLE_SECONDS)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
