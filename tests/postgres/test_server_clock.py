"""The clock of the server, as a process knows it."""

import time

import pytest

from holdfast.store.postgres.pool import ServerClock

MILLISECOND = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ServerClock:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1000 * MILLISECOND)
    return ServerClock()


def test_the_fastest_answer_counts_as_long_as_the_others_agree_with_it(clock: ServerClock) -> None:
    clock.set(5_000_000, 999 * MILLISECOND, 1001 * MILLISECOND)
    assert clock.boot_now() == 5_000_000
    clock.set(5_040_000, 1000 * MILLISECOND, 1100 * MILLISECOND)  # it may have been told at the start or the end
    assert clock.boot_now() == 5_000_000
    clock.set(5_000_400, 1000 * MILLISECOND, 1001 * MILLISECOND)
    assert clock.boot_now() == 4_999_900


def test_a_step_of_the_clock_is_taken_over_also_from_a_slow_answer(clock: ServerClock) -> None:
    clock.set(5_000_000, 1000 * MILLISECOND, 1000 * MILLISECOND)
    clock.set(9_050_000, 1000 * MILLISECOND, 1100 * MILLISECOND)
    assert clock.boot_now() == 9_000_000
