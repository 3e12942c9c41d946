"""Retention by age, number and size, and what is deleted with a job."""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, Retention, Rule
from holdfast.clock import SECOND
from holdfast.errors import AlreadyPruning, InvalidInput
from holdfast.model.pruning import DeleteJobs, DeleteRows, RowScan
from holdfast.testing import FakeClock
from support.backend import Backend
from support.finished_jobs import DAY, Ended

Sql = Callable[..., list[Any]]


@pytest.fixture
def ended(app: Holdfast) -> Ended:
    return Ended(app)


def left(app: Holdfast) -> list[int]:
    return sorted(job.id for job in app.jobs.list(limit=1000))


# --- by age ---


@pytest.mark.parametrize(("status", "days"), [("succeeded", 30), ("failed", 90), ("cancelled", 30)])
def test_by_default_finished_jobs_are_kept_for_30_days_and_failed_ones_for_90(
    app: Holdfast, clock: FakeClock, ended: Ended, status: str, days: int
) -> None:
    job = ended.job(status)
    clock.advance(days * DAY - 1)
    assert app.prune().jobs == 0
    clock.advance(2)
    assert getattr(app.prune(), status) == 1
    assert job not in left(app)


def test_unfinished_jobs_are_never_pruned(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    unfinished = [ended.task.using(**options).enqueue().id for options in ({}, {"delay": 9e8})]
    unfinished.append(ended.running())
    clock.advance(5000 * DAY)
    assert app.prune(retention=Retention(succeeded=0, failed=0, cancelled=0, newest=0, max_bytes=0)).jobs == 0
    assert left(app) == sorted(unfinished)


def test_messages_are_pruned_like_jobs(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("hello")
    message = inbox.receive()
    assert message is not None and message.ack()
    clock.advance(31 * DAY)
    assert app.prune().succeeded == 1


def test_the_first_matching_rule_decides(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    kept = ended.job("succeeded", queue="audit")
    ping = ended.job("succeeded", task="ping")
    failed_ping = ended.job("failed", task="ping")
    other = ended.job("succeeded")
    rules = [
        Rule(task="ping", status="succeeded", age=timedelta(hours=1)),
        Rule(queue="audit"),
        Rule(task="ping", age=1),
    ]
    clock.advance(2 * 3600)
    report = app.prune(retention=Retention(rules=rules))
    assert (report.succeeded, report.failed) == (1, 1)
    assert left(app) == sorted([kept, other])
    assert {ping, failed_ping} & set(left(app)) == set()
    clock.advance(1000 * DAY)
    app.prune(retention=Retention(rules=rules))
    assert left(app) == [kept]


def test_none_keeps_jobs_forever(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    jobs = [ended.job(status) for status in ("succeeded", "failed", "cancelled")]
    clock.advance(30_000 * DAY)
    app.prune(retention=Retention(succeeded=None, failed=None, cancelled=None))
    assert left(app) == jobs


# --- by number ---


def test_only_the_newest_are_kept(app: Holdfast, ended: Ended) -> None:
    """All finished at the same time: then the id decides."""
    jobs = [ended.job("succeeded") for _ in range(10)]
    failed = [ended.job("failed") for _ in range(3)]
    assert app.prune(retention=Retention(newest=4)).jobs == 6
    assert left(app) == sorted([*jobs[6:], *failed])


def test_the_limit_of_one_task_counts_only_its_own_jobs(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    pings = []
    for _ in range(5):
        pings.append(ended.job("succeeded", task="ping"))
        ended.job("succeeded")
        clock.advance(1)
    report = app.prune(retention=Retention(rules=[Rule(task="ping", newest=2)]))
    assert report.jobs == 3
    assert set(pings) & set(left(app)) == set(pings[3:])


def test_a_limit_of_zero_deletes_all_finished_jobs(app: Holdfast, ended: Ended) -> None:
    for status in ("succeeded", "failed", "cancelled"):
        ended.job(status)
    assert app.prune(retention=Retention(newest=0)).jobs == 3


# --- by size ---


def test_max_bytes_deletes_the_oldest_jobs_first_whatever_the_other_rules_say(
    app: Holdfast, clock: FakeClock, ended: Ended
) -> None:
    random, jobs = Random(1), []
    for number in range(400):
        jobs.append(ended.job(("succeeded", "failed", "cancelled")[number % 3], payload=random.randbytes(1000).hex()))
        clock.advance(1)
    most = app.store.file.used_bytes() // 2
    app.prune(retention=Retention(succeeded=None, failed=None, cancelled=None, max_bytes=most))
    assert app.store.file.used_bytes() <= most
    remaining = left(app)
    assert 0 < len(remaining) < 300
    assert remaining == jobs[-len(remaining) :]


def test_max_bytes_deletes_nothing_if_no_job_is_finished(app: Holdfast, ended: Ended) -> None:
    ended.task.enqueue_many([{"payload": "x"}] * 100)
    assert app.prune(retention=Retention(max_bytes=1)).jobs == 0


# --- what is deleted with a job ---


def test_a_job_is_deleted_with_its_history(
    app: Holdfast, clock: FakeClock, ended: Ended, sql: Sql, backend: Backend
) -> None:
    ended.job("failed", tags=["a", "b"])
    ended.job("succeeded")
    clock.advance(100 * DAY)
    app.prune(actor="ada", reason="spring")
    for table in ("jobs", "attempts", "tags", "blockers", "counts"):
        assert sql(f"SELECT count(*) FROM holdfast_{table}") == [(0,)], table  # noqa: S608
    assert sql("SELECT count(*) FROM holdfast_events WHERE job_id IS NOT NULL") == [(0,)]
    backend.check_consistency()


def test_a_long_run_leaves_no_events_of_the_jobs_that_it_deleted(
    app: Holdfast, clock: FakeClock, ended: Ended, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are folded and deleted in between, not after each step. The counts are always exact."""
    monkeypatch.setattr("holdfast.store.prune.FOLD_JOBS", 120)
    monkeypatch.setattr("holdfast.upkeep.prune.MAX_ROWS", 200)
    monkeypatch.setattr("holdfast.upkeep.prune.FIRST_ROWS", 200)
    ended.many(300)
    clock.advance(31 * DAY)
    left_over: set[int] = set()

    def look(done: int) -> None:
        assert sum(one.count or 0 for one in app.store.statistics.counts().items) == 300 - done
        left_over.update(*sql("SELECT count(*) FROM holdfast_events WHERE event = 'removed'"))

    assert app.prune(progress=look).succeeded == 300
    assert 40 < max(left_over) < 200 and len(left_over) > 2
    assert sql("SELECT count(*) FROM holdfast_events WHERE job_id IS NOT NULL OR event = 'removed'") == [(0,)]


def test_expired_rows_are_deleted_only_by_the_active_run(
    app: Holdfast, clock: FakeClock, ended: Ended, sql: Sql
) -> None:
    ended.job("failed")
    app.store.statistics.fold()
    app.prune()
    app.prune()
    clock.advance(500 * DAY)
    for kind in ("minutes", "failures", "audit"):
        scan = RowScan(kind, clock.now(), 1000)  # type: ignore[arg-type]
        keys, rest = app.store.pruning.expired_rows(scan)
        assert len(keys) > 0 and rest == scan, kind
        assert app.store.pruning.delete("no token", DeleteRows(scan, keys), {}) is None
    assert app.store.pruning.expired_rows(RowScan("minutes", 0, 1000)) == ((), None)
    for table in ("minutes", "failures", "tracebacks"):
        assert sql(f"SELECT count(*) > 0 FROM holdfast_{table}") == [(1,)], table  # noqa: S608


def test_a_scan_of_many_rows_continues_where_it_stopped(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    """Seven batches, two of which have not expired: three steps of three."""
    for _ in range(7):
        with app.batch():
            pass
    sql("UPDATE holdfast_batches SET done_at = ?", [clock.now()])
    sql("UPDATE holdfast_batches SET done_at = ? WHERE id IN (2, 5)", [clock.now() + 10 * SECOND])
    token = app.store.pruning.begin("operator", "ada", {})
    assert token is not None
    clock.advance(1)
    rest: RowScan | None = RowScan("batches", clock.now(), 3)
    deleted = []
    while rest is not None:
        scan = rest
        keys, rest = app.store.pruning.expired_rows(scan)
        done = app.store.pruning.delete(token, DeleteRows(scan, keys), {})
        assert done is not None
        deleted.append(done.rows)
    app.store.pruning.end(token, interrupted=False)
    assert deleted == [2, 2, 1]


def test_every_run_of_an_operator_is_logged(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    ended.job("succeeded")
    app.prune(actor="ada", reason="to see")
    clock.advance(31 * DAY)
    app.prune(actor="ada", reason="to tidy up")
    first, second = (event for event in app.observe.last_events(limit=1000) if event.event == "pruned")
    assert (first.actor, first.detail["reason"], "succeeded" in first.detail) == ("ada", "to see", False)
    assert (second.detail["succeeded"], second.detail["reason"]) == (1, "to tidy up")
    assert "succeeded 30d" in second.detail["retention"]


def test_statistics_failures_and_the_audit_outlive_the_jobs(
    app: Holdfast, clock: FakeClock, ended: Ended, sql: Sql
) -> None:
    ended.job("failed")
    ended.job("cancelled")
    app.queue("inbox").pause(actor="ada")
    app.queue("inbox").resume(actor="ada")
    clock.advance(100 * DAY)
    assert app.prune().failed == 1
    for table in ("minutes", "failures", "failure_minutes", "tracebacks"):
        assert sql(f"SELECT count(*) > 0 FROM holdfast_{table}") == [(1,)], table  # noqa: S608
    assert [event.event for event in app.observe.last_events(limit=1000)].count("paused") == 1
    clock.advance(266 * DAY)
    assert app.prune().audit == 2
    clock.advance(40 * DAY)
    report = app.prune()
    assert report.minutes > 0 and report.failures == 1 and report.tracebacks == 1
    for table in ("minutes", "failures", "failure_minutes", "tracebacks"):
        assert sql(f"SELECT count(*) FROM holdfast_{table}") == [(0,)], table  # noqa: S608


def test_a_traceback_is_kept_while_a_job_may_refer_to_it(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    ended.job("failed")
    clock.advance(3000 * DAY)
    report = app.prune(retention=Retention(failed=None))
    assert (report.failures, report.tracebacks) == (0, 0)
    (failure,) = app.observe.failures()
    assert "ValueError" in str(failure.traceback)


def test_the_newest_event_is_never_deleted(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    ended.job("succeeded")
    clock.advance(31 * DAY)
    app.prune()
    last = app.observe.last_event()
    clock.advance(1000 * DAY)
    app.prune()
    assert app.observe.last_event() > last
    ended.job("succeeded")
    assert app.observe.last_event() > last + 1


def test_limits_on_number_and_size_apply_to_jobs_that_finished_in_the_future(
    app: Holdfast, clock: FakeClock, ended: Ended
) -> None:
    ids = [ended.job("succeeded") for _ in range(20)]
    clock.step(-3600)
    assert app.prune(retention=Retention(succeeded=None, newest=15)).jobs == 5
    assert left(app) == ids[5:]
    assert app.prune(retention=Retention(succeeded=None, max_bytes=0)).jobs == 15


def test_a_dry_run_counts_and_deletes_nothing(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    jobs = [ended.job("succeeded") for _ in range(5)] + [ended.job("failed")]
    clock.advance(31 * DAY)
    before = app.observe.last_event()
    report = app.prune(dry_run=True)
    assert (report.dry_run, report.succeeded, report.failed) == (True, 5, 0)
    assert left(app) == jobs
    assert app.observe.last_event() == before


# --- the policy ---


def test_a_program_without_a_policy_uses_the_last_stored_one(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    given = Retention(succeeded=timedelta(days=7), rules=[Rule(task="ping", newest=5)], max_bytes=10**9)
    app, other = open_app(clock=clock, retention=given), open_app(clock=clock)
    assert other.retention == Retention()
    Ended(app)
    app.worker(until_idle=True).run()
    assert app.retention == other.retention == given
    (event,) = (event for event in app.observe.last_events(limit=1000) if event.event == "retention_changed")
    assert "succeeded 7d" in event.detail["retention"]
    app.worker(until_idle=True).run()
    assert [event.event for event in app.observe.last_events(limit=1000)].count("retention_changed") == 1


def test_a_policy_of_another_version_deletes_nothing(app: Holdfast, clock: FakeClock, ended: Ended, sql: Sql) -> None:
    job = ended.job("succeeded")
    sql("INSERT INTO holdfast_meta (name, value) VALUES ('retention', ?)", ['{"succeeded": [7]}'])
    clock.advance(40 * DAY)
    with pytest.raises(InvalidInput, match="another version"):
        app.prune()
    app.worker(until_idle=True).run()
    assert job in left(app)


@pytest.mark.parametrize(
    "wrong",
    [
        {"succeeded": "30d"},
        {"failed": -1},
        {"cancelled": True},
        {"newest": -1},
        {"max_bytes": 1.5},
        {"rules": [{"task": "ping"}]},
        {"rules": "ping"},
        {"automatic": 1},
        {"audit": timedelta(days=-1)},
        {"succeeded": float("nan")},
        {"archive": ""},
        {"archive": 5},
    ],
)
def test_invalid_settings_of_a_retention_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Retention(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"task": ""},
        {"queue": 5},
        {"task": "a", "status": "ready"},
        {"task": "a", "status": ["failed", "x"]},
        {"task": "a", "status": 5},
        {"task": "a", "status": []},
    ],
)
def test_invalid_settings_of_a_rule_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Rule(**wrong)


@pytest.mark.parametrize("nothing", ["", 5, b"jobs.jsonl.gz", []])
def test_an_invalid_archive_path_is_refused_and_nothing_is_deleted(app: Holdfast, nothing: Any) -> None:
    with pytest.raises(InvalidInput, match="archive must be the path of a file"):
        app.prune(archive=nothing, retention=Retention(succeeded=0))


def test_retention_must_be_a_retention(url: str) -> None:
    with pytest.raises(InvalidInput, match="Retention"):
        Holdfast(url, retention={"succeeded": 5})  # type: ignore[arg-type]


# --- one run at a time ---


def test_a_second_operator_gets_already_pruning(
    app: Holdfast, open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    token = app.store.pruning.begin("operator", "ada", {})
    assert token is not None
    with pytest.raises(AlreadyPruning, match="ada"):
        open_app(clock=clock).prune()
    app.store.pruning.end(token, interrupted=False)
    open_app(clock=clock).prune()


def test_an_operator_takes_over_from_a_worker_which_then_deletes_nothing(
    app: Holdfast, clock: FakeClock, ended: Ended
) -> None:
    jobs = [ended.job("succeeded") for _ in range(3)]
    token = app.store.pruning.begin("worker", "w", {})
    assert token is not None
    assert app.store.pruning.begin("worker", "another", {}) is None
    rows = app.store.pruning.finished_after("succeeded", (-1, 0), (clock.now(), 2**62), 10)
    done = app.store.pruning.delete(token, DeleteJobs("succeeded", tuple(rows[:1])), {})
    assert done is not None and done.counts["succeeded"] == 1
    app.prune()
    assert app.store.pruning.delete(token, DeleteJobs("succeeded", tuple(rows[1:])), {"succeeded": 1}) is None
    assert left(app) == jobs[1:]
    interrupted, asked = (event for event in app.observe.last_events(limit=1000) if event.event == "pruned")
    assert (interrupted.actor, interrupted.detail["succeeded"], interrupted.detail["interrupted"]) == ("w", 1, True)
    assert "succeeded" not in asked.detail


def test_an_interrupted_run_is_logged_with_its_counts(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    ended.many(400)
    clock.advance(31 * DAY)

    def stop(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.prune(progress=stop)
    (event,) = (event for event in app.observe.last_events(limit=1000) if event.event == "pruned")
    assert event.detail["interrupted"] is True
    assert event.detail["succeeded"] + app.prune().succeeded == 400
