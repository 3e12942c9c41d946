"""Metrics for Prometheus: the values of a scrape."""

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze
from holdfast.clock import SECOND
from holdfast.contrib.metrics import METRICS, OTHERS
from holdfast.contrib.prometheus import make_registry
from holdfast.fold import BOUNDS
from holdfast.testing import FakeClock
from support.running_worker import PATIENCE_SECONDS, RunningWorker, drain, eventually
from support.scraping import Scrape, fetch, scrape, served
from support.transitions import fold_all

Open = Callable[..., Holdfast]


@pytest.fixture
def live(open_app: Open) -> Holdfast:
    """An app on the real clock."""
    return open_app()


def by_sql(url: str, *statements: str) -> None:
    connection = sqlite3.connect(url)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def busy(app: Holdfast) -> None:
    """Jobs with every outcome, and messages."""

    @app.task(queue="mail", max_attempts=2, retry=[0])
    def send(how: str) -> Any:
        match how:
            case "raise":
                raise ConnectionError("no line")
            case "fail":
                return Fail("INVALID_INPUT:SCHEMA")
            case "cancel":
                return Cancel("enough")
            case "snooze":
                return Snooze(3600)
        return how

    send.enqueue_many([{"how": how} for how in ["well", "well", "well", "raise", "fail", "cancel", "snooze"]])
    inbox = app.queue("inbox")
    inbox.send_many(["a", "b", "c"])
    for settle in ("ack", "release"):
        message = inbox.receive()
        assert message is not None
        getattr(message, settle)()
    drain(app)


# --- what a scrape tells --------------------------------------------------------------------------


def test_a_scrape_counts_jobs_by_state_queue_and_task(live: Holdfast) -> None:
    busy(live)
    found = scrape(live)
    counts = {(one.labels["state"], one.labels["task"]): one.value for one in found.families["holdfast_jobs"].samples}
    assert counts == {
        ("succeeded", "send"): 3,
        ("failed", "send"): 2,
        ("cancelled", "send"): 1,
        ("scheduled", "send"): 1,
        ("succeeded", ""): 1,
        ("ready", ""): 2,
    }
    assert found.value("holdfast_jobs", queue="mail") == 7 and found.value("holdfast_jobs", queue="inbox") == 3


def test_attempts_are_counted_by_outcome(live: Holdfast) -> None:
    busy(live)
    found = scrape(live)
    mail = {
        one.labels["outcome"]: one.value
        for one in found.families["holdfast_attempts"].samples
        if one.labels["queue"] == "mail"
    }
    assert mail == {"succeeded": 3, "failed": 2, "retry_scheduled": 1, "cancelled": 1, "snoozed": 1}
    assert found.value("holdfast_attempts_total", queue="inbox", outcome="succeeded", task="") == 1
    assert found.value("holdfast_attempts_total", queue="inbox", outcome="released", task="") == 1
    assert found["holdfast_enqueued_total"] == 10
    assert found.value("holdfast_retries_total", queue="mail", task="send") == 1


def test_failures_are_counted_by_error_code(live: Holdfast) -> None:
    busy(live)
    codes = {one.labels["code"]: one.value for one in scrape(live).families["holdfast_failures"].samples}
    assert codes == {"DEPENDENCY:CONNECTION": 2, "INVALID_INPUT:SCHEMA": 1}


def test_a_task_that_asks_for_a_retry_is_counted(live: Holdfast) -> None:
    @live.task(max_attempts=3)
    def ask() -> Retry:
        return Retry(after=0)

    ask.enqueue()
    drain(live)
    found = scrape(live)
    assert found.value("holdfast_retries_total", task="ask") == 2
    assert found.value("holdfast_failures_total", code="RETRY:REQUESTED") == 3


def test_an_unsettled_message_counts_as_a_retry(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox", visibility=30)
    inbox.send("hello")
    assert inbox.receive() is not None
    clock.advance(31)
    assert inbox.receive() is not None
    found = scrape(app)
    assert found.value("holdfast_retries_total", queue="inbox") == 1
    assert found.value("holdfast_failures_total", code="TIMEOUT:VISIBILITY") == 1


def test_histograms_are_cumulative_and_count_finished_attempts(live: Holdfast) -> None:
    busy(live)
    found = scrape(live)
    for name in ("holdfast_attempt_run_seconds", "holdfast_attempt_wait_seconds"):
        buckets = [
            one
            for one in found.families[name].samples
            if one.name.endswith("_bucket") and one.labels["queue"] == "mail"
        ]
        assert [float(one.labels["le"]) for one in buckets] == [
            *(bound / SECOND for bound in BOUNDS),
            float("inf"),
        ]
        values = [one.value for one in buckets]
        assert values == sorted(values) and values[-1] == found.value(f"{name}_count", queue="mail") == 8
        assert found.value(f"{name}_sum", queue="mail") > 0
        assert found.value(f"{name}_count", queue="inbox", task="") == 1


def test_how_long_jobs_waited_is_exact(app: Holdfast, clock: FakeClock) -> None:
    @app.task
    def work() -> None: ...

    work.enqueue()
    work.using(delay=100).enqueue()
    clock.advance(107)
    drain(app)
    found = scrape(app)
    assert found["holdfast_attempt_wait_seconds_sum"] == pytest.approx(107 + 7, abs=0.5)
    assert found.value("holdfast_attempt_wait_seconds_bucket", le="8.388608") == 1
    assert found.value("holdfast_attempt_wait_seconds_bucket", le="134.217728") == 2


def test_the_oldest_ready_job_has_an_age_by_queue(app: Holdfast, clock: FakeClock) -> None:
    app.queue("slow").send(1)
    clock.advance(60)
    app.queue("slow").send(2)
    app.queue("later").send(1, delay=900)
    found = scrape(app)
    assert found.value("holdfast_oldest_ready_age_seconds", queue="slow") == 60
    assert found.labels("holdfast_oldest_ready_age_seconds", "queue") == {"slow", "later"}
    assert found.value("holdfast_oldest_ready_age_seconds", queue="later") == 0


def test_a_paused_queue_says_so(app: Holdfast) -> None:
    app.queue("open").send(1)
    app.queue("closed").pause()
    found = scrape(app)
    assert found.value("holdfast_queue_paused", queue="closed") == 1
    assert found.value("holdfast_queue_paused", queue="open") == 0


def test_live_workers_are_counted_with_their_jobs(live: Holdfast) -> None:
    go = threading.Event()

    @live.task
    def hold() -> None:
        go.wait(PATIENCE_SECONDS)

    hold.enqueue()
    with RunningWorker(live, concurrency=7), served(live) as url:
        eventually(lambda: fetch(url)["holdfast_worker_jobs"] == 1)
        found = fetch(url)
        assert found.value("holdfast_workers", state="alive") == 1
        assert found.value("holdfast_workers", state="suspended") == 0
        assert found["holdfast_worker_capacity"] == 7
        assert found.value("holdfast_jobs", state="running", task="hold") == 1
        go.set()
    assert scrape(live).value("holdfast_workers") == 0


def test_a_scrape_has_the_sizes_of_the_files(live: Holdfast) -> None:
    live.queue("inbox").send_many(["x" * 10_000] * 15)
    found = scrape(live)
    assert found["holdfast_database_bytes"] + found["holdfast_wal_bytes"] > 100_000
    assert found["holdfast_disk_free_bytes"] > 0
    assert found["holdfast_database_unused_bytes"] >= 0
    assert found["holdfast_scrape_duration_seconds"] > 0 and found["holdfast_scrape_error"] == 0


# --- counters only grow ---------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded yet"])
def test_counters_survive_pruning(live: Holdfast, url: str, folded: bool) -> None:
    busy(live)
    if folded:
        fold_all(live)
    before = scrape(live).counters()
    assert len(before) > 60
    by_sql(url, "DELETE FROM holdfast_minutes", "DELETE FROM holdfast_failures", "DELETE FROM holdfast_tracebacks")
    by_sql(url, "PRAGMA foreign_keys = ON", "DELETE FROM holdfast_jobs")
    assert scrape(live).value("holdfast_jobs") == 0
    assert scrape(live).counters() == before
    fold_all(live)
    assert scrape(live).value("holdfast_jobs") == 0
    assert scrape(live).counters() == before


def test_counters_continue_in_another_process(live: Holdfast, open_app: Open) -> None:
    busy(live)
    before = scrape(live).counters()
    another = open_app()
    assert scrape(another).counters() == before
    another.queue("inbox").send("d")
    after = scrape(live).counters()
    assert after[("holdfast_enqueued_total",)] == 11
    assert all(after[name] >= value for name, value in before.items())


def test_an_attempt_whose_lease_was_lost_is_not_counted(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox", visibility=30)
    inbox.send("hello")
    first = inbox.receive()
    clock.advance(31)
    second = inbox.receive()
    assert first is not None and second is not None
    assert (first.ack(), second.ack()) == (False, True)
    assert scrape(app).value("holdfast_attempts_total", outcome="succeeded") == 1


def test_an_attempt_that_completes_itself_is_counted_once(live: Holdfast) -> None:
    @live.task
    def work(ctx: Context) -> None:
        with ctx.complete():
            pass

    work.enqueue()
    drain(live)
    found = scrape(live)
    assert found.value("holdfast_attempts_total") == found.value("holdfast_attempt_run_seconds_count") == 1


def test_a_job_ended_by_an_operator_counts_as_an_attempt_only_if_it_ran(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    running, waiting = inbox.send_many(["a", "b"])
    assert inbox.receive() is not None
    app.jobs.cancel(running)
    app.jobs.cancel(waiting)
    found = scrape(app)
    assert found.value("holdfast_jobs", state="cancelled") == 2
    assert found.value("holdfast_attempts_total", outcome="cancelled") == 1


# --- names ----------------------------------------------------------------------------------------


def test_names_follow_the_conventions_of_prometheus(live: Holdfast) -> None:
    busy(live)
    found = scrape(live)
    for name, family in found.families.items():
        assert name.startswith("holdfast_") and family.documentation.endswith(".")
        assert family.type in ("gauge", "counter", "histogram")
        if family.type == "counter":
            assert all(one.name == f"{name}_total" for one in family.samples)
    assert {one.name for one in METRICS} < found.families.keys()


def test_any_queue_name_is_served(app: Holdfast, url: str) -> None:
    names = {'quo"te', "back\\slash", "ünï", "{a=b}", " space "}
    for name in names:
        app.queue(name).send(1)
    by_sql(url, "INSERT INTO holdfast_jobs (queue, args) VALUES ('new' || char(10) || 'line', '1')")
    assert scrape(app).labels("holdfast_jobs", "queue") == {*names, "new\nline"}


def test_pairs_beyond_the_limit_are_counted_together(app: Holdfast) -> None:
    for number in range(20):
        inbox = app.queue(f"user-{number}")
        inbox.send(1)
        inbox.receive().ack()  # type: ignore[union-attr]
    text = generate_latest(make_registry(app, most_places=5)).decode()
    found = Scrape(text)
    assert len(found.labels("holdfast_jobs", "queue")) == 6
    assert found.value("holdfast_jobs", queue=OTHERS) == found.value("holdfast_attempts_total", queue=OTHERS) == 15
    assert found.value("holdfast_attempt_run_seconds_count") == found.value("holdfast_jobs") == 20


def test_a_pair_keeps_its_series(app: Holdfast) -> None:
    registry = make_registry(app, most_places=2)
    series = set[str]()
    for name in ("c", "b", "a", "d"):
        app.queue(name).send(1)
        found = Scrape(generate_latest(registry).decode())
        assert series <= found.labels("holdfast_jobs", "queue")
        series = found.labels("holdfast_jobs", "queue")
    assert series == {"c", "b", OTHERS}


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "not folded yet"])
def test_each_wait_is_in_the_buckets_whose_bounds_are_above_it(app: Holdfast, clock: FakeClock, folded: bool) -> None:
    """Exact, though they are summed from the finer buckets of the database."""
    inbox = app.queue("inbox", visibility=10_000)
    waits = [0, 500, BOUNDS[0] - 1, BOUNDS[0], BOUNDS[0] + 1, 3_000_000, BOUNDS[-1] - 1, BOUNDS[-1], 9 * BOUNDS[-1]]
    for wait in waits:
        inbox.send(wait)
        clock.advance(wait / SECOND)
        message = inbox.receive()
        assert message is not None and message.ack()
    if folded:
        fold_all(app)
    found = scrape(app)
    buckets = [one for one in found.samples if one.name == "holdfast_attempt_wait_seconds_bucket"]
    expected = [sum(wait < bound for wait in waits) for bound in BOUNDS]
    assert [one.value for one in buckets] == [*expected, len(waits)]
    assert found["holdfast_attempt_wait_seconds_sum"] == pytest.approx(sum(waits) / SECOND)
