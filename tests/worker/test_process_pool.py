"""The pool of child processes: whatever a child sends, or does not, fails its own attempt alone."""

from typing import Any

import pytest

from holdfast.clock import SystemClock
from holdfast.failure import ErrorTable
from holdfast.model.job import Claimed, Settlement
from holdfast.retry_policies import fixed
from holdfast.worker.attempt import Attempt
from holdfast.worker.outcomes import OutcomeMapper
from holdfast.worker.process_pool import AttemptFinished, ProcessPool, Ready, encode
from holdfast.worker.thread_pool import PoolThread


class Handler:
    name, kind, wants_context, retry_policy = "work", "process", False, fixed(0)


class Process:
    """A child process that was started, and killed."""

    pid, exitcode = 0, -9

    def kill(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


class Pipe:
    def __init__(self, replies: list[Any]) -> None:
        self._replies = [encode(Ready()), *replies]
        self.sent: list[bytes] = []

    def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    def recv_bytes(self) -> bytes:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply  # type: ignore[no-any-return]

    def close(self) -> None: ...


def attempt(number: int) -> Attempt:
    claimed = Claimed(number, 1, 5, "default", "work", b"{}", None, 1)
    return Attempt(claimed, Handler(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reply",
    [b"junk", b"", encode({"type": "Unknown"}), encode([1]), EOFError(), BrokenPipeError(), KeyError()],
    ids=repr,
)
def test_a_reply_that_cannot_be_read_fails_its_attempt_and_the_next_has_another_process(reply: Any) -> None:
    one, two = attempt(1), attempt(2)
    done = AttemptFinished(Settlement(two.claimed.lease, "succeed", 1, 2))
    pipes = [Pipe([reply]), Pipe([encode(done)])]
    started = iter(pipes)
    pool = ProcessPool(
        lambda: (Process(), next(started)),
        OutcomeMapper(ErrorTable(), None),
        SystemClock(),
        None,
        None,  # type: ignore[arg-type]
    )
    thread = PoolThread()
    failed = pool.execute(thread, one)
    assert failed.transition == "retry" and failed.failure is not None
    assert failed.failure.code == "INTERNAL:PROCESS_DIED"
    assert pool.execute(thread, two) == done.settlement
    assert len(pipes[1].sent) == 1
