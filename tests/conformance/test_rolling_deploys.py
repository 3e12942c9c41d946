"""Two versions of the code on one database: payloads that the older one cannot read, and versions of tasks."""

import logging
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.testing import FakeClock
from holdfast.testing import drain as run_in_this_thread
from support.flow import Events, Open, Sql
from support.running_worker import PATIENCE_SECONDS, RunningWorker, attempts, drain, eventually, left

HOUR = 3600.0
NEW_PAYLOAD = '{"order": 7, "currency": "CHF"}'


def with_old_code(app: Holdfast, **options: Any) -> Any:
    @app.task(**options)
    def charge(order: int) -> str:
        return f"{order} by old code"

    return charge


def with_new_code(app: Holdfast, **options: Any) -> Any:
    @app.task(**options)
    def charge(order: int, currency: str = "EUR") -> str:
        return f"{order} {currency} by new code"

    return charge


@pytest.fixture
def new(open_app: Open, clock: FakeClock) -> Holdfast:
    """Another app on the same database, with newer code."""
    return open_app(clock=clock)


# --- payloads that do not fit ---


def test_g10_a_payload_for_newer_code_is_left_to_other_workers_and_does_not_count(
    app: Holdfast, new: Holdfast, events: Events
) -> None:
    with_old_code(app)
    job = with_new_code(new).enqueue(7, currency="CHF")
    drain(app)
    assert job.refresh().status == "ready", "other workers can take it at once"
    assert (left(app, job.id), job.error_code) == (5, None)
    assert events(job.id)[:3] == ["enqueued", "claimed", "returned"]
    drain(new)
    assert (job.refresh().status, job.result) == ("succeeded", "7 CHF by new code")


@pytest.mark.parametrize("args", ['{"order": "text"}', "{}", "[1]", NEW_PAYLOAD, "null"], ids=lambda args: args)
def test_whatever_is_json_may_fit_newer_code(app: Holdfast, sql: Sql, args: str) -> None:
    with_old_code(app)

    @app.task
    async def later(order: int) -> None: ...

    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?), ('later', ?)", (args, args))
    drain(app)
    assert app.jobs.count(status="ready") == 2


def test_jobs_behind_one_that_does_not_fit_are_run(app: Holdfast, sql: Sql) -> None:
    charge = with_old_code(app)
    sql("INSERT INTO holdfast_jobs (task, args, priority) VALUES ('charge', ?, 9)", (NEW_PAYLOAD,))
    good = [charge.enqueue(n) for n in range(3)]
    drain(app, concurrency=1)
    assert [job.refresh().status for job in good] == ["succeeded"] * 3
    assert app.jobs.count(status="ready") == 1


def test_a_worker_does_not_take_it_again_at_once(app: Holdfast, sql: Sql) -> None:
    charge = with_old_code(app)
    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    with RunningWorker(app):
        eventually(lambda: attempts(app, 1), "it was not taken")
        for n in range(20):  # each makes the worker claim again
            charge.enqueue(n).wait(PATIENCE_SECONDS)
    assert len([entry for entry in attempts(app, 1) if entry.name == "returned"]) < 20


def test_a_worker_tries_it_again_after_a_while_without_any_other_event(
    app: Holdfast, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.outcomes.FIRST_UNFIT_SECONDS", 0.01)
    with_old_code(app)
    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    with RunningWorker(app):
        eventually(lambda: len(attempts(app, 1)) >= 3, "it was not tried again")


def test_what_a_worker_cannot_remember_waits_for_everyone(
    app: Holdfast, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker remembers a bounded number of jobs that it cannot read. The others are scheduled for later."""
    monkeypatch.setattr("holdfast.worker.dispatcher.MAX_SKIPPED", 2)
    charge = with_old_code(app)
    for _ in range(5):
        sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    good = charge.enqueue(1)
    drain(app)
    assert good.refresh().status == "succeeded"
    assert (app.jobs.count(status="ready"), app.jobs.count(status="scheduled")) == (2, 3)


def test_g10_it_fails_when_no_worker_could_read_it_for_an_hour(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    with_old_code(app)
    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    begun = clock.now()
    ran = run_in_this_thread(app)
    job = app.jobs.get(1)
    assert (job.status, job.error_code) == ("failed", "INVALID_INPUT:PAYLOAD")
    assert "currency" in (job.error_detail or "")
    assert HOUR <= (clock.now() - begun) / 1e6 <= HOUR + 61
    assert (ran.failed, ran.returned, {one.outcome for one in ran}) == (1, len(ran) - 1, {"failed", "returned"})
    assert len(ran) < 100, "it is tried less and less often"


@pytest.mark.parametrize("seconds", [0, 60])
def test_that_time_can_be_set(open_app: Open, clock: FakeClock, sql: Sql, seconds: float) -> None:
    app = open_app(clock=clock, payload_timeout=seconds)
    with_old_code(app)
    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    begun = clock.now()
    assert run_in_this_thread(app).failed == 1
    assert seconds <= (clock.now() - begun) / 1e6 <= 2 * seconds


def test_the_time_begins_anew_after_newer_code_or_an_operator_had_it(app: Holdfast, new: Holdfast) -> None:
    with_old_code(app)

    @new.task(max_attempts=10, retry=120)
    def charge(order: int, currency: str = "EUR") -> None:
        raise ConnectionError

    job = charge.enqueue(7, "CHF")
    run_in_this_thread(app, seconds=HOUR - 60)
    assert job.refresh().status != "failed"
    assert run_in_this_thread(new, seconds=60).retried == 1
    run_in_this_thread(app, seconds=HOUR)
    assert job.refresh().status != "failed"
    run_in_this_thread(app)
    assert job.refresh().status == "failed"
    assert app.jobs.retry(job.id)
    run_in_this_thread(app, seconds=HOUR - 60)
    assert job.refresh().status != "failed"


def test_the_last_error_of_the_job_stays_what_it_was(app: Holdfast, new: Holdfast) -> None:
    with_old_code(app)
    seen: list[Any] = []

    @new.task(max_attempts=10, retry=60)
    def charge(ctx: Context, order: int, currency: str = "EUR") -> None:
        seen.append(ctx.last_error)
        if len(seen) == 1:
            raise ConnectionError("first")

    job = charge.enqueue(7, "CHF")
    assert run_in_this_thread(new, seconds=0).retried == 1
    assert run_in_this_thread(app, seconds=60).returned > 0
    assert run_in_this_thread(new).succeeded == 1
    assert [one and one.code for one in seen] == [None, "DEPENDENCY:CONNECTION"]
    assert job.refresh().status == "succeeded"


def test_the_worker_says_once_for_all_jobs_of_a_kind_that_it_gives_them_back(
    app: Holdfast, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    with_old_code(app)
    for _ in range(3):
        sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        drain(app)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("charge 1 does not fit the code of this worker")
    assert "CHF" not in line, "no payload"


def test_explain_and_the_doctor_say_that_it_waits_for_newer_code(
    app: Holdfast, clock: FakeClock, new: Holdfast
) -> None:
    with_old_code(app)
    job = with_new_code(new).enqueue(7, "CHF")
    assert "UNFIT_JOBS" not in [one.code for one in app.check().findings]
    drain(app)
    clock.advance(120)
    why = app.jobs.explain(job.id)
    assert "does not fit the code" in why.reason
    assert "unknown field `currency`" in why.reason
    (finding,) = [one for one in app.check().findings if one.code == "UNFIT_JOBS"]
    assert finding.severity == "warning"
    assert finding.detail["ids"] == (job.id,)
    drain(new)
    assert "UNFIT_JOBS" not in [one.code for one in app.check().findings]


def test_explain_says_it_of_a_job_that_is_scheduled_again(app: Holdfast, sql: Sql, clock: FakeClock) -> None:
    with_old_code(app)
    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('charge', ?)", (NEW_PAYLOAD,))
    run_in_this_thread(app, seconds=60)
    assert app.jobs.get(1).status == "scheduled"
    assert "does not fit the code" in app.jobs.explain(1).reason
    assert "UNFIT_JOBS" in [one.code for one in app.check().findings]


# --- versions ---


def test_g10_older_workers_do_not_take_jobs_of_a_newer_version(app: Holdfast, new: Holdfast, events: Events) -> None:
    old = with_old_code(app).enqueue(1)
    job = with_new_code(new, version=2).enqueue(7)  # its payload would fit the old code
    drain(app)
    assert (old.refresh().status, job.refresh().status, job.attempt) == ("succeeded", "ready", 0)
    assert job.version == 2
    drain(new)
    assert job.refresh().result == "7 EUR by new code"
    assert events(job.id) == ["enqueued", "claimed", "succeeded"]


def test_newer_workers_take_older_jobs(app: Holdfast, new: Holdfast) -> None:
    with_new_code(new, version=3)
    jobs = [with_old_code(app).enqueue(1)]
    drain(new)
    assert [job.refresh().status for job in jobs] == ["succeeded"]


@pytest.mark.parametrize("options", [{}, {"queues": "default"}], ids=["all queues", "by name"])
def test_a_worker_takes_versions_up_to_its_own_in_the_order_of_priority(
    app: Holdfast, sql: Sql, options: dict[str, Any]
) -> None:
    ran: list[int] = []

    @app.task(version=2)
    def charge(order: int) -> None:
        ran.append(order)

    @app.task
    def other(order: int) -> None:
        ran.append(order)

    for order, (version, priority) in enumerate([(0, 1), (1, 3), (2, 2), (3, 9), (2, 3), (0, 3)]):
        sql(
            "INSERT INTO holdfast_jobs (task, args, version, priority) VALUES ('charge', ?, ?, ?)",
            (f'{{"order": {order}}}', version, priority),
        )
    other.using(priority=2).enqueue(6)
    drain(app, concurrency=1, **options)
    assert ran == [1, 4, 5, 2, 6, 0]
    assert [(job.status, job.version) for job in app.jobs.list(status="ready")] == [("ready", 3)]


def test_the_jobs_of_a_chain_and_of_a_schedule_have_the_version_of_their_task(
    app: Holdfast, clock: FakeClock
) -> None:
    from holdfast import Then

    @app.task(version=4)
    def ship() -> None: ...

    @app.task
    def pay() -> Then:
        return Then(ship)

    @app.cron("* * * * *", version=5)
    def tidy() -> None: ...

    pay.enqueue()
    run_in_this_thread(app, seconds=61)
    versions = {job.task: job.version for job in app.jobs.list()}
    assert versions == {"pay": 0, "ship": 4, "tidy": 5}


def test_a_replaced_job_has_the_version_of_the_code_that_replaced_it(app: Holdfast, new: Holdfast) -> None:
    with_old_code(app).using(key="k", delay=60).enqueue(1)
    job = with_new_code(new, version=2).using(key="k", delay=60, on_conflict="replace").enqueue(2)
    assert job.refresh().version == 2


def test_drain_leaves_newer_versions_alone(app: Holdfast, new: Holdfast) -> None:
    with_old_code(app, version=1)
    job = with_new_code(new, version=2).enqueue(7)
    assert len(run_in_this_thread(app)) == 0
    assert job.refresh().status == "ready"


def test_explain_and_the_doctor_say_which_version_is_missing(app: Holdfast, new: Holdfast) -> None:
    with_old_code(app, version=1)
    job = with_new_code(new, version=2).enqueue(7)
    with RunningWorker(app):
        eventually(lambda: [one for one in app.store.workers.list() if one.is_present])
        why = app.jobs.explain(job.id)
        assert "version 2" in why.reason
        assert "version 1" in why.reason
        (finding,) = [one for one in app.check().findings if one.code == "OLD_WORKERS"]
        assert finding.severity == "warning"
        assert "charge" in finding.meaning


@pytest.mark.parametrize("version", [-1, 2**31, "2", 1.5, True, None])
def test_a_version_must_be_a_whole_number(app: Holdfast, version: Any) -> None:
    with pytest.raises(ValueError, match="version must be"):
        with_old_code(app, version=version)
