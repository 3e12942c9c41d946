"""Ends of forked children, and forks during traffic: no process hangs, and no acknowledged message is lost."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from holdfast import Holdfast
from support.forking import WATCHDOG_SECONDS, Child, ids_in, numbers, patient_forks, send  # noqa: F401  one is a fixture

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """An app on the real clock, with a busy_timeout below the watchdog's: a lock that is never released raises."""
    return open_app(busy_timeout=WATCHDOG_SECONDS / 2)


ENDS = {
    "sys.exit": "sys.exit(3)",
    "os._exit": "os._exit(3)",
    "an exception": "raise SystemError('the child ends like this')",
    "the end of the program": "pass",
    "an explicit close": "app.close()",
    "a collection of garbage": "del app, inbox; import gc; gc.collect()",
}

SCRIPT = """
import os, sys
from holdfast import Holdfast
from holdfast.store.sqlite import database
database.FORK_TIMEOUT_SECONDS = 150
app = Holdfast(sys.argv[1])
inbox = app.queue("inbox")
for n in range(20):
    inbox.send(n)
inbox.receive(wait=0.01)
if (pid := os.fork()) == 0:
    if {uses_it}:
        inbox.send("child")
    {end}
else:
    os.waitpid(pid, 0)
    for n in range(20):
        inbox.send(n)
    print(inbox.stats().total)
"""


@pytest.mark.parametrize("uses_it", [True, False])
@pytest.mark.parametrize("end", ENDS)
def test_the_parent_continues_however_a_child_ends(url: str, end: str, uses_it: bool) -> None:
    script = SCRIPT.format(end=ENDS[end], uses_it=uses_it)
    command = [sys.executable, "-c", script, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WATCHDOG_SECONDS)
    assert done.stdout == f"{40 + uses_it}\n"
    assert len(ids_in(url)) == 40 + uses_it


def test_a_pool_of_forked_processes_shares_the_app(app: Holdfast, url: str) -> None:
    before = send(app, 20)
    context = multiprocessing.get_context("fork")
    inherited.append(app)
    try:
        with context.Pool(4) as pool:
            results = pool.map_async(_send_inherited, [25] * 8).get(WATCHDOG_SECONDS)
    finally:
        inherited.clear()
    after = send(app, 20)
    sent = [id for result in results for id in result]
    app.close()
    assert len(set(sent)) == 200
    assert ids_in(url) == {*before, *sent, *after}


inherited: list[Holdfast] = []


def _send_inherited(number: int) -> list[int]:
    return send(inherited[0], number)


def test_fifty_forks_during_traffic_neither_hang_nor_lose_a_message(app: Holdfast, url: str) -> None:
    stop = threading.Event()
    acknowledged: list[int] = []
    received: list[int] = []
    inbox = app.queue("inbox", visibility=86400)  # so that no message is delivered again, however long this takes

    def keep_sending() -> None:
        while not stop.is_set():
            acknowledged.append(app.queue("inbox").send("traffic"))

    def keep_receiving() -> None:
        while not stop.is_set():
            received.extend(message.id for message in inbox.receive_many(3, wait=0.2))

    def keep_looking() -> None:
        while not stop.is_set():
            app.queue("inbox").stats()

    def send_and_receive() -> list[int]:
        sent = send(app, 3, "children")
        message = app.queue("children").receive(wait=WATCHDOG_SECONDS)
        assert message is not None and message.ack()
        return sent

    threads = [
        threading.Thread(target=work, daemon=True)
        for work in (keep_sending, keep_sending, keep_receiving, keep_looking)
    ]
    for thread in threads:
        thread.start()
    try:
        children: list[Child] = []
        sent: list[int] = []
        for _ in range(50):
            children.append(Child(send_and_receive))
            if len(children) == 4:
                sent += numbers(children.pop(0).result())
        for child in children:
            sent += numbers(child.result())
    finally:
        stop.set()
        for thread in threads:
            thread.join(WATCHDOG_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    app.close()
    assert len(sent) == 150 and len(received) == len(set(received))
    assert {*sent, *acknowledged} == ids_in(url)
