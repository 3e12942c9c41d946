"""The job log: each success has a line while they are few, and they are summed up when there are many."""

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.failure import Failure
from holdfast.model.job import Claimed, Settlement, Transition
from holdfast.worker.attempt import Attempt
from holdfast.worker.job_log import LINES_PER_SECOND, JobLog, JsonLines, TextLines

MILLISECOND = 1000
NOON = 1_800_000_000_000_000

Finished = tuple[Attempt, Settlement]


class ManualClock:
    """A clock of monotonic seconds that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def job_log(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> JobLog:
    caplog.set_level(logging.INFO, "holdfast.worker")
    return JobLog(clock)


def finished(
    transition: Transition = "succeed",
    *,
    task: str = "send_mail",
    queue: str = "mail",
    ran: int = 3 * MILLISECOND,
    failure: Failure | None = None,
) -> Finished:
    claimed = Claimed(7, 1, 5, queue, task, b"{}", None, 0, run_at=NOON)
    handler: Any = SimpleNamespace(name=task)
    return Attempt(claimed, handler, 0), Settlement(claimed.lease, transition, NOON, NOON + ran, failure=failure)


def many(count: int, **about: Any) -> list[Finished]:
    return [finished(**about) for _ in range(count)]


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.holdfast for record in caplog.records]  # type: ignore[attr-defined]


def sums(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [one for one in fields(caplog) if "count" in one]


def singles(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [one for one in fields(caplog) if "job" in one]


def test_at_a_low_rate_each_success_has_a_line(
    job_log: JobLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        job_log.settled([finished()], set())
        clock.seconds += 1 / 16
    job_log.close()
    assert len(singles(caplog)) == len(caplog.records) == job_log.counts["succeeded"] == 100
    assert caplog.messages[0] == "send_mail 7 succeeded (attempt 1 of 5, ran 3.0 ms, waited 0.0 ms)"


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        (740_258, "0.7 s"),
        (0, "0 s"),
        (30_000_000, "30 s"),
        (9_999_999, "10 s"),
        (90_000_000, "1m 30s"),
        (3600 * 10**6, "1h"),
    ],
)
def test_a_delay_is_logged_in_units_for_people(
    job_log: JobLog, caplog: pytest.LogCaptureFixture, delay: int, words: str
) -> None:
    attempt, settlement = finished()
    retry = msgspec.structs.replace(
        settlement, transition="retry", delay=delay, failure=Failure("DEPENDENCY:CONNECTION")
    )
    job_log.settled([(attempt, retry)], set())
    assert f"failed with DEPENDENCY:CONNECTION, retry in {words} (attempt 1 of 5, " in caplog.messages[0]


def test_a_burst_is_logged_as_some_lines_and_then_one_sum(
    job_log: JobLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        job_log.settled(many(100, ran=1 * MILLISECOND), set())
    assert len(caplog.records) == len(singles(caplog)) == LINES_PER_SECOND, "the second is not over"
    clock.seconds += 1
    job_log.settled([finished()], set())
    assert caplog.messages[LINES_PER_SECOND].startswith("send_mail: 4,980 more succeeded in 1.0 s (ran p50 1.")
    assert [one["count"] for one in sums(caplog)] == [4_980]
    assert caplog.messages[-1].startswith("send_mail 7 succeeded"), "a new second starts with lines"
    assert job_log.counts["succeeded"] == 5_001


def test_a_sum_has_percentiles_of_the_run_times(job_log: JobLog, caplog: pytest.LogCaptureFixture) -> None:
    job_log.settled(many(LINES_PER_SECOND), set())
    for milliseconds in range(1, 1001):
        job_log.settled([finished(ran=milliseconds * MILLISECOND)], set())
    job_log.close()
    (one,) = sums(caplog)
    assert one["p50_ms"] == pytest.approx(500, rel=0.05)
    assert one["p95_ms"] == pytest.approx(950, rel=0.05)


@pytest.mark.parametrize("ran", [-1, 0, 100 * 366 * 24 * 3600 * 1_000_000])
def test_any_run_time_can_be_summed_up(job_log: JobLog, caplog: pytest.LogCaptureFixture, ran: int) -> None:
    job_log.settled(many(LINES_PER_SECOND + 3, ran=ran), set())
    job_log.close()
    assert [one["count"] for one in sums(caplog)] == [3]


def test_each_task_has_its_own_sum(job_log: JobLog, caplog: pytest.LogCaptureFixture) -> None:
    job_log.settled([*many(100), *many(30, task="resize", queue="images")], set())
    job_log.close()
    assert [(one["task"], one["queue"], one["count"]) for one in sums(caplog)] == [
        ("send_mail", "mail", 100 - LINES_PER_SECOND),
        ("resize", "images", 29),
    ]


def test_a_rare_task_has_a_line_beside_a_busy_one(job_log: JobLog, caplog: pytest.LogCaptureFixture) -> None:
    job_log.settled([*many(100), finished(task="backup")], set())
    job_log.close()
    assert [one["task"] for one in singles(caplog)] == ["send_mail"] * LINES_PER_SECOND + ["backup"]
    assert [one["task"] for one in sums(caplog)] == ["send_mail"]


def test_a_task_in_several_queues_has_one_sum(job_log: JobLog, caplog: pytest.LogCaptureFixture) -> None:
    job_log.settled([*many(100), *many(10, queue="urgent")], set())
    job_log.close()
    (one,) = sums(caplog)
    assert (one["queue"], one["count"]) == (None, 110 - LINES_PER_SECOND)


@pytest.mark.parametrize(
    ("transition", "outcome"),
    [
        ("retry", "retry_scheduled"),
        ("fail", "failed"),
        ("stop", "cancelled"),
        ("snooze", "snoozed"),
        ("interrupt", "interrupted"),
    ],
)
def test_other_outcomes_always_have_a_line(
    job_log: JobLog, caplog: pytest.LogCaptureFixture, transition: Transition, outcome: str
) -> None:
    failure = Failure("NETWORK:TIMEOUT", "") if outcome in {"failed", "retry_scheduled"} else None
    job_log.settled([*many(100), *many(100, transition=transition, failure=failure)], set())
    logged = [one for one in singles(caplog) if one["outcome"] == outcome]
    assert len(logged) == job_log.counts[outcome] == 100
    assert len(singles(caplog)) == LINES_PER_SECOND + 100


def test_a_success_without_a_lease_has_a_line_and_is_in_no_sum(
    job_log: JobLog, caplog: pytest.LogCaptureFixture
) -> None:
    late = finished()
    job_log.settled([*many(100), late, *many(100)], {id(late[1])})
    job_log.close()
    assert [one["outcome"] for one in singles(caplog)].count("lost") == 1
    assert [one["count"] for one in sums(caplog)] == [200 - LINES_PER_SECOND]
    assert (job_log.counts["succeeded"], job_log.counts["lost"]) == (200, 1)


def test_housekeeping_logs_a_sum_if_no_more_attempts_are_settled(
    job_log: JobLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    job_log.settled(many(100), set())
    clock.seconds += 0.9
    job_log.flush_due()
    assert sums(caplog) == []
    clock.seconds += 0.1
    job_log.flush_due()
    job_log.flush_due()
    assert [(one["count"], one["seconds"]) for one in sums(caplog)] == [(80, 1.0)]


def test_close_logs_the_remaining_sums(job_log: JobLog, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    job_log.settled(many(100), set())
    clock.seconds += 0.25
    job_log.close()
    job_log.close()
    assert [(one["count"], one["seconds"]) for one in sums(caplog)] == [(80, 0.25)]


def test_a_sum_has_json_fields_and_a_text_line(job_log: JobLog, caplog: pytest.LogCaptureFixture) -> None:
    job_log.settled(many(100, ran=0, task="a\nb"), set())
    job_log.close()
    record = caplog.records[-1]
    line = msgspec.json.decode(JsonLines().format(record))
    del line["time"], line["message"]
    assert 0 <= line.pop("p50_ms") <= line.pop("p95_ms") <= 0.001
    assert line == {
        "level": "info",
        "logger": "holdfast.worker",
        "task": "a\nb",
        "queue": "mail",
        "outcome": "succeeded",
        "count": 80,
        "seconds": 0.0,
    }
    assert "a\\nb: 80 more succeeded" in TextLines().format(record)


def test_a_quiet_log_counts_successes_and_logs_only_failures(
    job_log: JobLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast.worker")
    job_log.settled([*many(100), finished("fail")], set())
    job_log.close()
    assert [one["outcome"] for one in fields(caplog)] == ["failed"]
    assert (job_log.counts["succeeded"], job_log.counts["failed"]) == (100, 1)
