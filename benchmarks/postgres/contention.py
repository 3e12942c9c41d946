"""What several do at the same time: consumers, worker processes, and an enqueue beside an open transaction."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, Target, at_most, rate, take_turns
from ..workload import noop
from .drains import drain
from .server import ROOT, Server

ENQUEUES, MESSAGES, JOBS = 500, 4_000, 20_000
SAMPLE_SECONDS = 0.002
NOTES = """\
- **Open transaction:** single enqueues, while another connection is in a transaction that has enqueued a job of the
  same task, and without. **Consumers:** processes that receive and acknowledge one message at a time. **Locks:**
  every 2 ms, which of the sessions of four draining worker processes wait for a lock. **NOTIFY:** what arrives at a
  connection that listens during that drain.
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
        "beside": lambda: _enqueues(server, enqueues, beside=True),
        "alone": lambda: _enqueues(server, enqueues, beside=False),
        "four": lambda: _consume(server, messages, 4),
        "one": lambda: _consume(server, messages, 1),
    }
    rates = take_turns(effort.rounds, "/s", turns)
    yield rates.ratio("enqueue beside an open transaction ÷ without", "beside", "alone", Target(0.9))
    yield rates.ratio("four consumers of one queue ÷ one", "four", "one", Target(2))
    yield from _drain_watched(server, effort.of(JOBS, least=2_000))


def _enqueues(server: Server, count: int, *, beside: bool) -> float:
    with server.database() as url, Holdfast(url) as app:
        task = app.task(noop)
        task.enqueue()
        with psycopg.connect(url) as other:
            if beside:
                task.using(conn=other).enqueue()
            return rate(lambda: task.enqueue(), count)


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
