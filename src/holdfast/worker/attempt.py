"""One attempt that a worker has taken: from the claim to the moment when it is settled."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Literal, Protocol

from msgspec import Struct

from ..clock import SECOND, Clock
from ..context import Complete, Context, ContextBackend, LastError
from ..model.job import Claimed, NewJob, Settlement
from ..model.outcome import Then
from ..retry import RetryPolicy

Kind = Literal["thread", "async", "process"]
Middleware = Callable[[Context], Any]
"""A generator function: what comes before its `yield` runs before the handler, what comes after, after it."""


class Handler(Protocol):
    name: str

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def retry_policy(self) -> RetryPolicy: ...

    @property
    def wants_context(self) -> bool: ...

    def check_result(self, data: bytes) -> None:
        """Raises InvalidInput where it is not of the type that the task is annotated to return."""
        ...

    def go_on_with(self, then: Then) -> NewJob:
        """What a chain goes on with. Raises HoldfastError where it cannot."""
        ...

    def bind(self, data: bytes, context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the function with. Raises ValueError where the payload does not fit."""
        ...


class Attempt(Struct, eq=False):
    """One attempt that a worker has claimed. The thread that runs it writes its fields; housekeeping reads them."""

    claimed: Claimed
    handler: Handler
    taken: int  # when it was claimed, monotonic nanoseconds
    short: bool = False  # its task has been quick so far
    began: int = 0  # monotonic nanoseconds; 0: not yet
    started_at: int = 0
    deadline: int = 0  # 0: none
    cancelled: bool = False
    touched: bool = False
    completing: int = 0  # monotonic nanoseconds: since when it is in ctx.complete()
    completed: Settlement | None = None  # by ctx.complete(): it is settled, whatever its handler does next
    progress: float | None = None
    progress_text: str | None = None
    reported_at: int = 0  # 0: nothing was stored since the claim
    stop: Any = None  # stops the handler, where that can be done

    def begin(self, clock: Clock) -> None:
        self.started_at = clock.now()
        self.began = monotonic_ns()
        if self.claimed.timeout is not None:
            self.deadline = self.began + self.claimed.timeout * 1000

    def finished_at(self) -> int:
        """By the wall clock as it was at the start: a step of the clock does not change how long it took."""
        return self.started_at + (monotonic_ns() - self.began) // 1000

    def context(self, backing: ContextBackend, complete: Complete) -> Context:
        claimed = self.claimed
        code = claimed.error_code
        return Context(
            job_id=claimed.id,
            attempt=claimed.attempt,
            task=self.handler.name,
            queue=claimed.queue,
            max_attempts=claimed.max_attempts,
            last_error=None if code is None else LastError(code, claimed.error_detail or ""),
            reporting=self,
            backend=backing,
            complete=complete,
            trace=claimed.origin,
            waited=max(0, self.started_at - claimed.run_at) / SECOND,
        )

    def tell_completing(self, completing: bool) -> None:
        """While it completes itself, nobody takes it for lost."""
        self.completing = monotonic_ns() if completing else 0

    # --- what its Context asks for ---

    def report_progress(self, fraction: float | None, text: str | None) -> None:
        if fraction is not None:
            self.progress = fraction
        if text is not None:
            self.progress_text = text
        self.touched = True

    def is_cancelled(self) -> bool:
        return self.cancelled
