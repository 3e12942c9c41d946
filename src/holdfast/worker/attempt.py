"""One attempt to run a job, from the claim until it is settled."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..clock import SECOND, Clock, boot_ns
from ..context import Complete, Context, ContextBackend, LastError
from ..model.job import Claimed, NewJob, Settlement
from ..model.outcome import Then
from ..retry_policies import RetryPolicy

Kind = Literal["thread", "async", "process"]
Middleware = Callable[[Context], Any]
"""A generator function with one `yield`: the code before it runs before the handler, the rest after."""


class Handler(Protocol):
    """A task, as the worker needs it: the function to call and how to call it."""

    name: str

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def retry_policy(self) -> RetryPolicy: ...

    @property
    def version(self) -> int: ...

    @property
    def wants_context(self) -> bool: ...

    @property
    def allows_none(self) -> bool:
        """Whether the task may return None by its annotation."""
        ...

    def retries(self, error: BaseException) -> bool:
        """Return whether an attempt that raised this is retried, as far as its type decides about it."""
        ...

    def check_result(self, data: bytes) -> None:
        """Raise InvalidInput if the result does not have the annotated return type of the task."""
        ...

    def go_on_with(self, then: Then) -> NewJob:
        """Return the next job of the chain. Raises HoldfastError if there cannot be one."""
        ...

    def bind(self, data: bytes, context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the function with. Raises ValueError if the payload does not fit."""
        ...


class Attempt(Struct, eq=False):
    """One claimed attempt. The thread that runs it writes the fields; housekeeping reads them.

    Fields that end in `_ns` are monotonic nanoseconds; 0 means not yet, or none.
    """

    claimed: Claimed
    handler: Handler
    claimed_ns: int
    start_until_ns: int = 0  # on the boot clock: the handler may be called until then
    is_short: bool = False  # recent jobs of the task took less than a millisecond
    started_ns: int = 0  # when the handler started
    started_at: int = 0  # the same on the wall clock, in microseconds
    deadline_ns: int = 0  # end of the timeout
    cancelled: bool = False
    has_new_progress: bool = False  # not stored yet
    completing_since_ns: int = 0  # when it entered ctx.complete(), while it is in there
    completed: Settlement | None = None  # stored by ctx.complete(): nothing is left to settle
    progress: float | None = None
    progress_text: str | None = None
    renewed_ns: int = 0  # when the lease was last renewed after the claim
    stop: Any = None  # a function that stops the handler, if that is possible

    def start(self, clock: Clock) -> None:
        self.started_at = clock.now()
        self.started_ns = monotonic_ns()
        if self.claimed.timeout is not None:
            self.deadline_ns = self.started_ns + self.claimed.timeout * 1000

    def may_start(self) -> bool:
        """Return whether the lease cannot have ended: after a stop or a suspend, another worker may hold the job."""
        return not self.start_until_ns or boot_ns() < self.start_until_ns

    def finished_at(self) -> int:
        """Return the start time plus the elapsed time: a change of the wall clock must not affect the duration."""
        return self.started_at + (monotonic_ns() - self.started_ns) // 1000

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

    def set_completing(self, completing: bool) -> None:
        """Mark the start or end of ctx.complete(). In between, housekeeping does not treat the lease as lost."""
        self.completing_since_ns = monotonic_ns() if completing else 0

    def with_progress(self, settlement: Settlement) -> Settlement:
        """Return the settlement with the last progress, which may not be stored yet."""
        if self.progress is None:
            return settlement
        return replace(settlement, progress=self.progress, progress_text=self.progress_text)

    # --- called by the Context ---

    def report_progress(self, fraction: float | None, text: str | None) -> None:
        if fraction is not None:
            self.progress = fraction
        if text is not None:
            self.progress_text = text
        self.has_new_progress = True

    def is_cancelled(self) -> bool:
        return self.cancelled
