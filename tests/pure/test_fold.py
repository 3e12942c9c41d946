"""Folding the log, and histograms of durations: pure functions, tested without a database."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import ceil
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fold import (
    ATTEMPT,
    BOUNDS,
    BUCKETS,
    ENQUEUED,
    FINAL_OUTCOMES,
    MINUTE,
    OUTCOMES,
    RUN,
    TERMINAL,
    TIMED,
    UNTRIED,
    WAIT,
    FailureRow,
    FailureSum,
    GroupRow,
    Sums,
    Total,
    bucket_of,
    cumulative,
    fold,
    lower_bound,
    percentile,
)
from holdfast.model.job import STATUSES
from holdfast.store.statistics import Zone, _rows


class Event(NamedTuple):
    """The columns of an event that folding reads."""

    job: int
    at: int
    event: str
    queue: str = "mail"
    task: str = "send"
    old: str | None = "running"
    new: str | None = "succeeded"
    attempt: int = 1
    waited: int | None = None
    ran: int | None = None
    code: str | None = None
    fingerprint: str | None = None


def rows(log: Sequence[Event]) -> tuple[list[GroupRow], list[FailureRow]]:
    """Return what the statements event_groups and event_failures return."""
    groups: dict[tuple[Any, ...], list[Event]] = {}
    for one in log:
        key = (one.at // MINUTE, one.queue, one.task, one.event, one.old, one.new, one.attempt)
        groups.setdefault(key, []).append(one)
    failures = [
        (one.at // MINUTE, one.queue, one.task, one.code, one.fingerprint, one.job, one.at)
        for one in log
        if one.code is not None
    ]
    return [
        (*key, len(some), joined(one.waited for one in some), joined(one.ran for one in some))  # type: ignore[misc]
        for key, some in groups.items()
    ], failures


def joined(durations: Iterable[int | None]) -> str | None:
    """Return what group_concat returns."""
    known = [str(one) for one in durations if one is not None]
    return ",".join(known) or None


def folded(log: Sequence[Event]) -> Sums:
    return fold(*rows(log))


def added(sums: Sums, more: Sums) -> Sums:
    """Add sums as the statements that store them do."""
    result = Sums(sums.counts.copy(), sums.minutes.copy(), dict(sums.totals), {}, sums.failure_minutes.copy())
    result.counts.update(more.counts)
    result.minutes.update(more.minutes)
    result.failure_minutes.update(more.failure_minutes)
    for key, one in more.totals.items():
        before = result.totals.get(key, Total())
        result.totals[key] = Total(before.n + one.n, before.sum + one.sum)
    result.failures = dict(sums.failures)
    for name, new in more.failures.items():
        old = result.failures.get(name, FailureSum(new.first_seen, new.last_seen, 0))
        result.failures[name] = FailureSum(
            min(old.first_seen, new.first_seen), max(old.last_seen, new.last_seen), new.last_job_id, old.n + new.n
        )
    return result


def plain(sums: Sums) -> tuple[object, ...]:
    """Return comparable values, without counts of 0."""
    counts = {key: n for key, n in sums.counts.items() if n}
    return counts, dict(sums.minutes), sums.totals, sums.failures, dict(sums.failure_minutes)


TIMES = st.integers(0, 4 * MINUTE)
DURATIONS = st.none() | st.integers(0, 10**13)
STATES = st.none() | st.sampled_from(sorted(STATUSES))


def as_logged(one: Event) -> Event:
    """Make the event valid: both durations or none, and a failure only with an old status."""
    durations = None if one.old is None or one.waited is None else (one.waited, one.ran or 0)
    waited, ran = durations or (None, None)
    return one._replace(waited=waited, ran=ran, code=None if one.old is None else one.code)


EVENTS = st.builds(
    Event,
    job=st.integers(1, 5),
    at=TIMES,
    event=st.sampled_from(sorted({*OUTCOMES, "enqueued", "claimed", "promoted", "edited", "removed", "interrupted"})),
    queue=st.sampled_from(["mail", "media"]),
    task=st.sampled_from(["", "send", "crop"]),
    old=STATES,
    new=STATES,
    attempt=st.integers(0, 4),
    waited=DURATIONS,
    ran=DURATIONS,
    code=st.none() | st.sampled_from(["A", "B:C"]),
    fingerprint=st.none() | st.sampled_from(["f00d", "cafe"]),
).map(as_logged)
LOGS = st.lists(EVENTS, max_size=30)


# --- folding --------------------------------------------------------------------------------------


@given(LOGS, st.lists(st.integers(0, 30), max_size=6))
def test_folding_in_steps_gives_the_same_sums_as_folding_at_once(log: list[Event], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    sums = folded([])
    for begin, end in pairwise(bounds):
        sums = added(sums, folded(log[begin:end]))
    assert plain(sums) == plain(folded(log))


@given(LOGS)
def test_each_sum_equals_a_direct_count(log: list[Event]) -> None:
    sums = folded(log)
    for key, n in sums.counts.items():
        into = sum((one.queue, one.task, one.new) == key for one in log)
        assert n == into - sum((one.queue, one.task, one.old) == key for one in log)
    by_measure = Counter[str]()
    for (_, _, _, measure, _), n in sums.minutes.items():
        by_measure[measure] += n
    with_job = [one for one in log if one.old is not None]
    timed = [one for one in with_job if one.event in TIMED and one.waited is not None and one.ran is not None]
    assert by_measure[ENQUEUED] == sum(one.event == ENQUEUED for one in log)
    for outcome in OUTCOMES:
        tried = [one.old == "running" for one in log if one.event == outcome]
        assert by_measure[outcome] == sum(tried)
        assert by_measure[UNTRIED + outcome] == (len(tried) - sum(tried) if outcome in FINAL_OUTCOMES else 0)
    assert by_measure[WAIT] == by_measure[RUN] == len(timed)
    assert by_measure[ATTEMPT] == sum(
        one.event in FINAL_OUTCOMES and one.new in TERMINAL and one.attempt > 0 for one in with_job
    )
    totals = {measure: Total(0, 0) for measure in (WAIT, RUN)}
    for (_, _, measure, _), total in sums.totals.items():
        if measure in totals:
            totals[measure] = Total(totals[measure].n + total.n, totals[measure].sum + total.sum)
    assert totals[WAIT] == Total(len(timed), sum(one.waited or 0 for one in timed))
    assert totals[RUN] == Total(len(timed), sum(one.ran or 0 for one in timed))
    failed = [one for one in with_job if one.code is not None]
    assert sum(one.n for one in sums.failures.values()) == sum(sums.failure_minutes.values()) == len(failed)
    assert sum(sums.error_totals().values()) == len(failed)


@given(LOGS)
def test_totals_are_the_sums_of_all_minutes(log: list[Event]) -> None:
    sums = folded(log)
    by_minutes = Counter[tuple[str, str, str, int]]()
    for (_, queue, task, measure, bucket), n in sums.minutes.items():
        if measure != ATTEMPT and not measure.startswith(UNTRIED):
            by_minutes[queue, task, measure, bucket] += n
    assert {key: one.n for key, one in sums.totals.items()} == by_minutes


def test_a_job_is_counted_once_in_its_current_queue_and_status() -> None:
    begun = Event(1, 0, "enqueued", old=None, new="ready")
    log = [begun, begun._replace(event="claimed", old="ready", new="running")]
    assert +folded(log).counts == {("mail", "send", "running"): 1}
    log.append(Event(1, MINUTE, "retry_scheduled", new="scheduled", waited=5, ran=7, code="A", fingerprint="f00d"))
    assert +folded(log).counts == {("mail", "send", "scheduled"): 1}
    moved = Event(1, MINUTE, "edited", old="scheduled", new=None)
    log += [moved, moved._replace(queue="media", old=None, new="ready")]
    assert plain(folded(log))[0] == {("media", "send", "ready"): 1}
    log.append(Event(1, MINUTE, "removed", queue="media", old="ready", new=None))
    assert plain(folded(log))[0] == {}


def test_attempts_of_the_same_kind_are_one_sum() -> None:
    log = [Event(job, 0, "succeeded", waited=waited, ran=20_000) for job, waited in enumerate((5, 4, 6000))]
    sums = folded(log)
    assert sums.totals == {
        ("mail", "send", "succeeded", 0): Total(3, 0),
        ("mail", "send", "wait", bucket_of(4)): Total(1, 4),
        ("mail", "send", "wait", bucket_of(5)): Total(1, 5),
        ("mail", "send", "wait", bucket_of(6000)): Total(1, 6000),
        ("mail", "send", "run", bucket_of(20_000)): Total(3, 60_000),
    }
    assert sums.minutes[0, "mail", "send", "attempt", 1] == 3


@pytest.mark.parametrize("event", ["interrupted", "returned", "edited"])
def test_uncounted_attempts_and_edits_are_not_measured(event: str) -> None:
    sums = folded([Event(1, 0, event, new="ready", waited=5, ran=5)])
    assert not sums.minutes and not sums.totals


def test_the_last_failed_job_is_by_log_order_and_the_times_are_by_the_clock() -> None:
    """The clock may have been set back between two failures."""
    log = [
        Event(7, 9 * MINUTE, "failed", new="failed", code="A"),
        Event(8, 2 * MINUTE, "failed", new="failed", code="A"),
    ]
    assert folded(log).failures == {("A", "mail", "send", ""): FailureSum(2 * MINUTE, 9 * MINUTE, 8, 2)}


# --- histograms -----------------------------------------------------------------------------------


@given(st.integers(0, 2**70))
def test_a_duration_is_within_the_bounds_of_its_bucket(duration: int) -> None:
    bucket = bucket_of(duration)
    assert 0 <= bucket < BUCKETS
    assert lower_bound(bucket) <= duration
    assert duration < lower_bound(bucket + 1) or bucket == BUCKETS - 1


def test_buckets_are_contiguous_and_none_is_wider_than_a_quarter_of_its_value() -> None:
    for bucket in range(BUCKETS):
        assert bucket_of(lower_bound(bucket)) == bucket
        width = lower_bound(bucket + 1) - lower_bound(bucket)
        assert width == 1 or width * 4 <= lower_bound(bucket)
    assert bucket_of(-5) == 0, "the clock was set back"


@given(st.lists(st.integers(0, 2**40)))
def test_cumulative_counts_are_exact(durations: list[int]) -> None:
    histogram = Counter(bucket_of(duration) for duration in durations)
    below = [sum(duration < bound for duration in durations) for bound in BOUNDS]
    assert cumulative(histogram) == [*below, len(durations)]


@pytest.mark.parametrize("bound", BOUNDS)
def test_each_exported_bound_is_the_bound_of_a_bucket(bound: int) -> None:
    assert lower_bound(bucket_of(bound)) == bound and bucket_of(bound - 1) == bucket_of(bound) - 1


@given(st.lists(st.integers(0, 2**45), min_size=1), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_the_bucket_of_the_exact_one(durations: list[int], share: float) -> None:
    found = percentile(Counter(bucket_of(duration) for duration in durations), share)
    exact = sorted(durations)[max(0, ceil(share * len(durations)) - 1)]
    assert found is not None and lower_bound(bucket_of(exact)) <= found <= lower_bound(bucket_of(exact) + 1)


def test_an_empty_histogram_has_no_percentile() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({bucket_of(1000): 10}, 1.0) == lower_bound(bucket_of(1000) + 1)


def test_a_zone_has_jobs_of_a_time_unless_all_are_older_or_newer() -> None:
    times = [None, 1, 2, 3]
    for since, before, first, last in product(times, repeat=4):
        too_old = since is not None and last is not None and last < since
        too_new = before is not None and first is not None and first >= before
        assert Zone(0, first, last, 0, 0).has(since, before) is not (too_old or too_new)


def test_sums_of_nothing_are_not_stored() -> None:
    assert _rows(Counter({("a", "b"): 2, ("c", "d"): 0, ("e", "f"): -1})) == [("a", "b", 2), ("e", "f", -1)]


@pytest.mark.parametrize(("waited", "ran"), [(None, "5"), ("5", None)])
def test_an_attempt_with_one_of_two_times_has_no_durations(waited: str | None, ran: str | None) -> None:
    sums = fold([(0, "q", "t", "succeeded", "running", "succeeded", 1, 1, waited, ran)], [])
    assert {measure for _, _, measure, _ in sums.totals} == {"succeeded"}


def test_failures_are_counted_by_fingerprint() -> None:
    sums = fold([], [(0, "q", "t", "E", "F", 1, 5), (0, "q", "t", "E", None, 2, 6), (0, "q", "t", "E", "F", 3, 7)])
    assert {key: one.n for key, one in sums.failures.items()} == {("E", "q", "t", "F"): 2, ("E", "q", "t", ""): 1}
