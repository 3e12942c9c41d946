"""Retry policies: how long to wait before the next attempt, in seconds.

Whether there is a next attempt is decided in worker/outcomes.py and by the statements of sql/settle.sql.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from .errors import InvalidInput
from .validate import shown

if TYPE_CHECKING:
    from random import Random


MAX_DELAY_SECONDS = 365 * 24 * 3600.0


class RetryPolicy(Protocol):
    """Returns the seconds to wait after attempt 1, 2, 3 … failed. `random` is the source of jitter."""

    def __call__(self, attempt: int, random: "Random", /) -> float: ...


class _Backoff(Struct, frozen=True):
    base: float
    factor: float
    cap: float
    jitter: float

    def __call__(self, attempt: int, random: "Random", /) -> float:
        try:
            delay = min(self.base * self.factor ** (attempt - 1), self.cap)
        except OverflowError:
            delay = self.cap
        return delay * (1 - self.jitter * random.random())


class _Delays(Struct, frozen=True):
    seconds: tuple[float, ...]

    def __call__(self, attempt: int, random: "Random", /) -> float:  # noqa: ARG002
        return self.seconds[min(attempt, len(self.seconds)) - 1]


class _Linear(Struct, frozen=True):
    step: float
    cap: float

    def __call__(self, attempt: int, random: "Random", /) -> float:  # noqa: ARG002
        return min(attempt * self.step, self.cap)


class _Custom(Struct, frozen=True):
    function: Callable[..., float]
    takes_random: bool

    def __call__(self, attempt: int, random: "Random", /) -> float:
        seconds = self.function(attempt, random) if self.takes_random else self.function(attempt)
        # With the arguments in this order, NaN becomes 0.
        return min(max(0.0, float(seconds)), MAX_DELAY_SECONDS)


def _takes_two(function: Callable[..., float]) -> bool:
    """Return whether a user's function takes (attempt, random) rather than just the attempt."""
    from inspect import signature

    try:
        signature(function).bind(1, None)
    except (TypeError, ValueError):
        return False
    return True


def backoff(base: float = 10, factor: float = 2, cap: float = 3600, jitter: float = 0.25) -> RetryPolicy:
    """Exponential backoff: `base`, `base × factor`, `base × factor²` … up to `cap` seconds.

    jitter: the fraction by which each delay is shortened at random, so that jobs that failed together are not retried
        together.
    """
    _require_numbers(base=base, factor=factor, cap=cap, jitter=jitter)
    _require(base >= 0 and cap >= 0, f"base and cap must be at least 0, got {base} and {cap}")
    _require(factor >= 1, f"factor must be at least 1, got {factor}")
    _require(0 <= jitter <= 1, f"jitter must be from 0 to 1, got {jitter}")
    return _Backoff(base, factor, min(cap, MAX_DELAY_SECONDS), jitter)


def linear(step: float = 30, cap: float = 3600) -> RetryPolicy:
    """Linear backoff: `step`, 2 × `step`, 3 × `step` … up to `cap` seconds."""
    _require_numbers(step=step, cap=cap)
    _require(step >= 0 and cap >= 0, f"step and cap must be at least 0, got {step} and {cap}")
    return _Linear(step, min(cap, MAX_DELAY_SECONDS))


def fixed(seconds: float) -> RetryPolicy:
    """The same delay after every attempt."""
    return delays([seconds])


def delays(seconds: Sequence[float]) -> RetryPolicy:
    """One delay per attempt; the last one repeats."""
    _require(isinstance(seconds, Sequence) and not isinstance(seconds, str), "delays must be a list of seconds")
    _require(len(seconds) > 0, "delays must not be empty")
    for delay in seconds:
        _require_numbers(delay=delay)
    _require(
        all(0 <= delay <= MAX_DELAY_SECONDS for delay in seconds), "each delay must be from 0 seconds to 365 days"
    )
    return _Delays(tuple(float(delay) for delay in seconds))


def retry_policy(policy: RetryPolicy | Sequence[float] | float | Callable[[int], float]) -> RetryPolicy:
    """Return the policy for `@app.task(retry=…)`: a policy, a list of delays, one delay, or a function."""
    if isinstance(policy, (_Backoff, _Delays, _Linear, _Custom)):
        return policy
    if isinstance(policy, (int, float)) and not isinstance(policy, bool):
        return fixed(policy)
    if isinstance(policy, Sequence) and not isinstance(policy, str):
        return delays(policy)
    if callable(policy):
        return _Custom(policy, _takes_two(policy))
    raise InvalidInput(
        "retry must be backoff(…), linear(…), fixed(…), a list of seconds, or a function that takes the attempt "
        f"number and returns seconds, got {shown(policy)}"
    )


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise InvalidInput(f"retry policy: {problem}")


def _require_numbers(**values: object) -> None:
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _require(number, f"{name} must be a number, got {type(value).__qualname__}")
