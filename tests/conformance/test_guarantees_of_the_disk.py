"""The guarantees G9 and G11: a disk that fails is told by a typed error, a lock of others is not told at all.

What is about SQLite's file is in tests/sqlite/test_guarantees_of_the_file.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import ReadOnlyDatabase, StoreBusy, StoreError
from holdfast.testing import FakeClock
from support.backend import Backend, WriteLock
from support.disks import SENDS, Send
from support.locking import result_after
from support.transitions import promote, recover

# --- G9: on a read-only disk a typed error, never a success ---


@pytest.fixture(params=SENDS.values(), ids=SENDS.keys())
def send(request: pytest.FixtureRequest) -> Send:
    found: Send = request.param
    return found


def test_g9_a_read_only_disk_is_told(app: Holdfast, backend: Backend, send: Send) -> None:
    backend.make_read_only(app)
    with pytest.raises(ReadOnlyDatabase, match="cannot be written"):
        send(app)
    assert app.queue("inbox").stats().total == 0


def test_g9_a_settle_on_a_read_only_disk_is_told(app: Holdfast, backend: Backend) -> None:
    app.queue("inbox").send("x")
    message = app.queue("inbox").receive()
    assert message is not None
    backend.make_read_only(app)
    for settle in (message.ack, message.release, lambda: message.extend(5)):
        with pytest.raises(ReadOnlyDatabase):
            settle()


# --- G11: "database is locked" never reaches a user ---


@pytest.fixture
def lock(app: Holdfast, backend: Backend) -> Iterator[WriteLock]:
    """Somebody else's, who writes."""
    with backend.hold_write_lock() as held:
        yield held


CALLS: dict[str, Callable[[Holdfast], Any]] = {
    **SENDS,
    "receive": lambda app: app.queue("seeded").receive(),
    "cancel": lambda app: app.jobs.cancel(queue="seeded"),
    "delete": lambda app: app.jobs.delete(queue="seeded"),
    "pause": lambda app: app.queue("seeded").pause(),
    "purge": lambda app: app.queue("seeded").purge(),
    "recover": lambda app: recover(app.store),
    "promote": lambda app: promote(app.store),
    "extend": lambda app: app.queue("held").extend(2, 1, 30),
    "ack": lambda app: app.queue("held").ack(2, 1),
    "release": lambda app: app.queue("held").release(2, 1),
}


@pytest.fixture
def seeded(open_app: Callable[..., Holdfast], clock: FakeClock) -> None:
    with open_app(clock=clock) as app:
        assert app.queue("seeded").send("x") == 1
        app.queue("held").send("x")
        app.queue("held").receive()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_g11_a_write_waits_for_the_lock_of_others(
    seeded: None, app: Holdfast, lock: WriteLock, call: Callable[[Holdfast], Any]
) -> None:
    assert not isinstance(result_after(lock, lambda: call(app)), Exception)


def test_g11_reading_does_not_wait(seeded: None, app: Holdfast, lock: WriteLock) -> None:
    assert app.jobs.get(1).args == "x"
    assert app.queue("seeded").stats().ready == 1
    assert len(app.jobs.list()) == 2


def test_g11_a_lock_without_end_is_an_error_that_says_what_to_do(
    open_app: Callable[..., Holdfast], clock: FakeClock, lock: WriteLock, send: Send
) -> None:
    app = open_app(busy_timeout=0.05, clock=clock)
    with pytest.raises(StoreBusy, match="write lock") as caught:
        send(app)
    assert "database is locked" not in str(caught.value)
    assert isinstance(caught.value, StoreError)


def test_g11_after_such_an_error_all_goes_on(
    open_app: Callable[..., Holdfast], clock: FakeClock, lock: WriteLock, send: Send
) -> None:
    app = open_app(busy_timeout=0.05, clock=clock)
    with pytest.raises(StoreBusy):
        send(app)
    lock.release()
    send(app)
    assert app.queue("inbox").stats().total in (1, 3)
