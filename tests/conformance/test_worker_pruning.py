"""Background pruning: one worker at a time prunes between jobs, until it shuts down."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from holdfast import Holdfast, Retention, Rule
from holdfast.model.pruning import DeleteJobs
from holdfast.testing import FakeClock
from holdfast.upkeep import prune as pruning
from holdfast.upkeep import throttle
from holdfast.upkeep.prune import BackgroundPruner
from support.finished_jobs import DAY, Ended
from support.running_worker import PATIENCE_SECONDS, RunningWorker, comes_true, drain, eventually

Open = Callable[..., Holdfast]


@pytest.fixture
def ended(app: Holdfast) -> Ended:
    return Ended(app)


def count(app: Holdfast) -> int:
    return app.jobs.count(status=["succeeded", "failed", "cancelled"])


def events(app: Holdfast, name: str) -> int:
    return [event.event for event in app.observe.last_events(limit=1000)].count(name)


def test_a_worker_prunes_while_it_runs_jobs(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    ended.many(1200)
    clock.advance(31 * DAY)
    with RunningWorker(app):
        eventually(lambda: count(app) == 0)
        ended.task.enqueue().wait(PATIENCE_SECONDS)
        eventually(lambda: events(app, "pruned") == 1)
    (event,) = (event for event in app.observe.last_events(limit=1000) if event.event == "pruned")
    assert (event.detail["succeeded"], "interrupted" in event.detail) == (1200, False)


def test_a_worker_writes_nothing_if_nothing_has_expired(app: Holdfast, ended: Ended) -> None:
    ended.job("succeeded")
    drain(app)
    assert app.store.pruning.state().last_at is None
    assert events(app, "pruned") == 0


def test_a_worker_prunes_at_intervals(
    app: Holdfast, clock: FakeClock, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning.BackgroundPruner.__init__, "__defaults__", (0.02,))
    with RunningWorker(app):
        for months in range(1, 4):
            ended.task.enqueue().wait(PATIENCE_SECONDS)
            clock.advance(31 * DAY)
            eventually(lambda: count(app) == 0, f"after {months} months")


def test_a_full_pass_checks_again_jobs_that_could_not_be_deleted(
    app: Holdfast, clock: FakeClock, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ended.task.enqueue()
    ended.end(first.id)
    waiting = ended.task.using(after=first, queue="elsewhere").enqueue()
    clock.advance(31 * DAY)
    upkeep = BackgroundPruner(app.store, clock, every=0.0)
    for _ in range(20):
        upkeep.do_some()
    assert first.refresh().status == "succeeded"
    assert app.jobs.cancel(waiting.id)
    clock.advance(31 * DAY)
    monkeypatch.setattr(upkeep, "_full_at", 0.0)
    for _ in range(60):
        upkeep._next_at = 0.0
        upkeep.do_some()
    assert count(app) == 0


def test_a_worker_that_shuts_down_stops_pruning_at_once(
    app: Holdfast, clock: FakeClock, ended: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended.many(1500)
    clock.advance(31 * DAY)
    for factor in ("IDLE_FACTOR", "BUSY_FACTOR"):
        monkeypatch.setattr(throttle, factor, 1e6)  # so that it does not come to a second step
    with RunningWorker(app) as running:
        eventually(lambda: count(app) < 1500)
        running.stop()
    assert count(app) > 0
    (event,) = (event for event in app.observe.last_events(limit=1000) if event.event == "pruned")
    assert event.detail["interrupted"] is True
    assert event.detail["succeeded"] == 1500 - count(app)
    assert app.store.pruning.state().pid is None


def test_only_one_of_two_workers_prunes(app: Holdfast, open_app: Open, clock: FakeClock, ended: Ended) -> None:
    ended.many(1000)
    clock.advance(31 * DAY)
    other = open_app(clock=clock)
    Ended(other)
    with RunningWorker(app), RunningWorker(other):
        eventually(lambda: count(app) == 0)
        eventually(lambda: events(app, "pruned") == 1)
    detail = [event.detail for event in app.observe.last_events(limit=1000) if event.event == "pruned"]
    assert sum(one.get("succeeded", 0) for one in detail) == 1000


def test_background_pruning_can_be_switched_off(open_app: Open, clock: FakeClock) -> None:
    app = open_app(clock=clock, retention=Retention(automatic=False))
    job = Ended(app).job("succeeded")
    clock.advance(400 * DAY)
    with RunningWorker(app):
        eventually(lambda: app.store.pruning.state().retention is not None)
        Ended(app).task.enqueue().wait(PATIENCE_SECONDS)
    assert app.jobs.get(job).status == "succeeded"
    assert app.prune().succeeded == 1


def test_a_clock_that_was_set_back_deletes_nothing(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    ended.job("succeeded")
    clock.step(-3000 * DAY)
    with RunningWorker(app):
        ended.task.enqueue().wait(PATIENCE_SECONDS)
    assert count(app) == 2


def test_the_rules_of_the_worker_apply(open_app: Open, clock: FakeClock) -> None:
    app = open_app(
        clock=clock, retention=Retention(rules=[Rule(task="ping", age=timedelta(minutes=5))], succeeded=None)
    )
    ended = Ended(app)
    ended.job("succeeded", task="ping")
    kept = ended.job("succeeded")
    clock.advance(600)
    with RunningWorker(app):
        eventually(lambda: count(app) == 1)
    assert app.jobs.get(kept).status == "succeeded"


def test_pruning_under_load_loses_no_job(open_app: Open) -> None:
    """On the real clock: old jobs are deleted while new ones are enqueued and run. None is lost or runs twice."""
    app = open_app(retention=Retention(succeeded=0, rules=[Rule(task="keep")]))
    ran: list[int] = []
    lock = threading.Lock()

    @app.task
    def keep(n: int) -> None:
        with lock:
            ran.append(n)

    ended = Ended(app)
    for _ in range(600):
        ended.job("succeeded")
    with RunningWorker(app):
        for number in range(400):
            keep.enqueue(number)
        eventually(lambda: len(ran) >= 400)
        eventually(lambda: app.jobs.count(task="work") == 0)
        eventually(lambda: app.jobs.count(task="keep", status="succeeded") == 400)
    assert sorted(ran) == list(range(400))


def test_a_job_that_is_retried_meanwhile_is_not_deleted(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    jobs = [ended.job("failed") for _ in range(3)]
    clock.advance(91 * DAY)
    rows = app.store.pruning.finished_after("failed", (-1, 0), (clock.now(), 2**62), 10)
    assert app.jobs.retry(jobs[1])
    token = app.store.pruning.begin("operator", "ada", {})
    assert token is not None
    done = app.store.pruning.delete(token, DeleteJobs("failed", tuple(rows)), {})
    assert done is not None and done.counts["failed"] == 2
    assert app.jobs.get(jobs[1]).status == "ready"


def test_a_job_that_becomes_a_blocker_meanwhile_is_not_deleted(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    job = ended.job("succeeded")
    clock.advance(31 * DAY)
    rows = app.store.pruning.finished_after("succeeded", (-1, 0), (clock.now(), 2**62), 10)
    waiting = ended.task.using(after=job).enqueue()
    token = app.store.pruning.begin("operator", "ada", {})
    assert token is not None
    done = app.store.pruning.delete(token, DeleteJobs("succeeded", tuple(rows)), {})
    assert done is not None and done.counts["succeeded"] == 0
    assert waiting.refresh().status == "ready"


def test_a_job_with_a_very_long_history_is_deleted_in_several_transactions(
    app: Holdfast, clock: FakeClock, ended: Ended, sql: object
) -> None:
    job = ended.job("succeeded")
    assert callable(sql)
    sql("UPDATE holdfast_jobs SET attempt = 4000, max_attempts = 5000 WHERE id = ?", [job])
    sql(
        """WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
        INSERT INTO holdfast_events (job_id, attempt, at, claimed_at, event) SELECT ?, i, 0, 0, 'released' FROM n""",
        [job],
    )
    clock.advance(31 * DAY)
    steps: list[int] = []
    assert app.prune(progress=steps.append).succeeded == 1
    assert steps.count(0) > 2
    assert sql("SELECT count(*) FROM holdfast_attempts") == [(0,)]


def test_the_time_with_the_write_lock_is_bounded() -> None:
    batch = throttle.BatchSize(500, 50, 5000, seconds=0.02)
    batch.adapt(500, 0.1)
    assert batch.rows == 100
    batch.adapt(100, 0.001)
    assert batch.rows == 150
    for _ in range(30):
        batch.adapt(batch.rows, 0.0001)
    assert batch.rows == 5000
    batch.adapt(5000, 10.0)
    assert batch.rows == 50


def test_pauses_are_longer_while_there_is_traffic(app: Holdfast) -> None:
    pauses = throttle.Throttle(app.store)
    assert pauses.pause(0.02) == pytest.approx(0.02 * throttle.IDLE_FACTOR)
    app.queue("inbox").send_many(range(100))
    assert pauses.pause(0.02) == pytest.approx(0.02 * throttle.BUSY_FACTOR)
    assert pauses.pause(0.0) == 0.0


def test_a_stopped_worker_releases_the_prune_lock(app: Holdfast, clock: FakeClock, ended: Ended) -> None:
    started = threading.Event()
    begin = app.store.pruning.begin

    def begun(*args: object) -> str | None:
        started.set()
        return begin(*args)  # type: ignore[arg-type]

    app.store.pruning.begin = begun  # type: ignore[method-assign]
    ended.job("succeeded")
    clock.advance(31 * DAY)
    with RunningWorker(app):
        comes_true(started)
        eventually(lambda: app.store.pruning.state().last_at is not None)
    assert app.store.pruning.state().last_counts == {"succeeded": 1}
    app.prune()
