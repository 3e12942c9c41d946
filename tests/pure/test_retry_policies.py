"""Retry policies are pure functions from the failed attempt to seconds; the random numbers are an argument."""

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, backoff, delays, fixed, linear
from holdfast.errors import InvalidInput
from holdfast.retry_policies import MAX_DELAY_SECONDS, RetryPolicy, retry_policy


class Chance(Random):
    """It always throws the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


LEAST, MOST = Chance(0.0), Chance(0.999999)


def first(policy: RetryPolicy, count: int = 5, random: Random = LEAST) -> list[float]:
    return [policy(attempt, random) for attempt in range(1, count + 1)]


def test_backoff_grows_by_its_factor_up_to_its_cap() -> None:
    assert first(backoff(base=10, factor=2, cap=60)) == [10, 20, 40, 60, 60]


def test_jitter_shortens_by_up_to_its_fraction() -> None:
    policy = backoff(base=100, factor=1, jitter=0.25)
    assert policy(1, LEAST) == 100
    assert policy(1, MOST) == pytest.approx(75, abs=0.01)


def test_without_jitter_the_delay_is_not_random() -> None:
    policy = backoff(base=10, factor=3, jitter=0)
    assert first(policy, random=LEAST) == first(policy, random=MOST) == [10, 30, 90, 270, 810]


def test_the_same_random_numbers_give_the_same_delays() -> None:
    assert first(backoff(), random=Random(7)) == first(backoff(), random=Random(7))


def test_jitter_spreads_jobs_that_failed_together() -> None:
    chance = Random(7)
    assert len({backoff()(1, chance) for _ in range(50)}) == 50


@pytest.mark.parametrize("attempt", [1_000, 1_000_000])
@pytest.mark.parametrize("base", [10, 0.5])
def test_backoff_accepts_any_number_of_attempts(base: float, attempt: int) -> None:
    assert backoff(base=base, factor=2, cap=300, jitter=0)(attempt, LEAST) == 300


def test_linear_is_thirty_seconds_times_the_attempt() -> None:
    assert first(linear()) == [30, 60, 90, 120, 150]


def test_linear_has_a_step_and_a_cap() -> None:
    assert first(linear(step=10, cap=25)) == [10, 20, 25, 25, 25]


def test_fixed_is_always_the_same() -> None:
    assert first(fixed(7)) == [7, 7, 7, 7, 7]


def test_a_list_gives_one_delay_per_attempt_and_repeats_its_last() -> None:
    assert first(delays([1, 5, 30])) == [1, 5, 30, 30, 30]


@pytest.mark.parametrize(
    "make",
    [
        lambda: backoff(base=-1),
        lambda: backoff(factor=0.5),
        lambda: backoff(cap=-1),
        lambda: backoff(jitter=1.5),
        lambda: backoff(jitter=-0.1),
        lambda: backoff(base=math.nan),
        lambda: linear(step=-1),
        lambda: linear(cap=-1),
        lambda: fixed(-1),
        lambda: fixed(math.inf),
        lambda: fixed(math.nan),
        lambda: delays([]),
        lambda: delays([1, -1]),
        lambda: delays([1, 10**12]),
    ],
)
def test_an_invalid_policy_is_refused(make: Callable[[], RetryPolicy]) -> None:
    with pytest.raises(InvalidInput, match="retry policy"):
        make()


# --- what @app.task(retry=…) takes ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (backoff(base=1, jitter=0), [1, 2, 4, 8, 16]),
        (linear(), [30, 60, 90, 120, 150]),
        ([1, 2], [1, 2, 2, 2, 2]),
        ((3,), [3, 3, 3, 3, 3]),
        (5, [5, 5, 5, 5, 5]),
        (0.5, [0.5] * 5),
        (0, [0] * 5),
        (lambda attempt: attempt**2, [1, 4, 9, 16, 25]),
        (lambda attempt, random: attempt * 10 + random.random(), [10, 20, 30, 40, 50]),
    ],
)
def test_a_task_takes_a_policy_a_list_a_number_or_any_callable(given: Any, expected: list[float]) -> None:
    assert first(retry_policy(given)) == expected


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize("given", ["soon", True, None, object(), {"after": 1}, Unprintable()])
def test_a_task_refuses_anything_else(given: Any) -> None:
    with pytest.raises(InvalidInput, match="retry"):
        retry_policy(given)


@pytest.mark.parametrize(
    ("returned", "delay"), [(-5, 0), (math.inf, MAX_DELAY_SECONDS), (10**12, MAX_DELAY_SECONDS), (True, 1)]
)
def test_the_delay_of_a_callable_is_clamped(returned: float, delay: float) -> None:
    assert retry_policy(lambda attempt: returned)(1, LEAST) == delay


def test_a_callable_that_does_not_return_a_number_still_gives_a_delay() -> None:
    delay = retry_policy(lambda attempt: math.nan)(1, LEAST)
    assert 0 <= delay <= MAX_DELAY_SECONDS


def test_the_default_is_exponential_with_jitter(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "app.db") as app:
        policy = app.task(name="nothing")(lambda: None).options.retry
    assert first(policy, 3) == [10, 20, 40]
    assert policy(1, MOST) < 10


def test_a_task_keeps_the_policy_it_was_given(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "app.db") as app:
        policy = app.task(name="nothing", retry=[1, 2, 3])(lambda: None).options.retry
    assert first(policy, 3) == [1, 2, 3]
