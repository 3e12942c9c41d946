"""A dry run predicts what pruning deletes: jobs with their rows, and rows without a job."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from holdfast import Fail, Holdfast, Retention, Rule, Then
from holdfast.testing import FakeClock
from holdfast.upkeep.prune import PruneReport
from support.effort import a_part
from support.finished_jobs import DAY
from support.flow import Sql
from support.running_worker import drain

TABLES = ("attempts", "events", "batches", "minutes", "failures", "tracebacks")
COUNTS = ("succeeded", "failed", "cancelled", "batches", "minutes", "failures", "tracebacks", "audit", "blobs")

MIXED = Retention(
    succeeded=timedelta(days=30),
    failed=timedelta(days=60),
    cancelled=timedelta(days=20),
    rules=(
        Rule(task="quick", age=timedelta(days=5)),
        Rule(queue="mail", status="succeeded", age=timedelta(days=60), newest=5),
        Rule(queue="keep", age=timedelta(days=50)),
    ),
    rollups=timedelta(days=25),
    failures=timedelta(days=60),
    audit=timedelta(days=10),
)


@pytest.fixture
def app(open_app: Callable[..., Holdfast], clock: FakeClock) -> Holdfast:
    """An app without background pruning."""
    return open_app(clock=clock, retention=Retention(automatic=False))


def grow(app: Holdfast, clock: FakeClock, random: Random) -> None:
    """Run a mix of everything over some months: successful and failed chains, jobs with blockers, batches with
    callbacks, messages, shared large payloads, operator actions."""

    @app.task(queue="walk")
    def walk(left: int, fails: bool = False) -> Any:
        if left:
            return Then(walk, left - 1, fails)
        return Fail("TEST:BROKEN") if fails else "there"

    @app.task(queue="default", max_attempts=1)
    def quick(fails: bool = False) -> None:
        if fails:
            raise ValueError("broken")

    @app.task(queue="mail")
    def mail(text: str) -> str:
        return text

    @app.task(queue="keep", max_attempts=1)
    def keep(fails: bool = False) -> None:
        if fails:
            raise KeyError("once, long ago")

    inbox, ends = app.queue("inbox"), [keep.enqueue(True)]
    mail.using(queue="default").enqueue("z" * 100_000)
    for _ in range(12):
        for _ in range(random.randrange(6)):
            ends.append(walk.enqueue(random.randrange(4), random.random() < 0.2))
        ends += [quick.enqueue(random.random() < 0.3) for _ in range(random.randrange(6))]
        ends += [mail.enqueue(random.choice("abcdef") * 100_000) for _ in range(random.randrange(3))]
        ends.append(keep.enqueue())
        for _ in range(random.randrange(5)):
            policy = random.choice(["hold", "cancel", "run"])
            after = random.sample(ends, min(len(ends), random.randrange(1, 3)))
            ends.append(walk.using(after=after, on_blocker_failure=policy).enqueue(1))
        with app.batch(on_success=quick.s(), on_done=walk.s(1)) as batch:
            for _ in range(random.randrange(1, 5)):
                quick.using(batch=batch).enqueue(random.random() < 0.2)
        app.jobs.cancel(mail.using(delay=500 * DAY).enqueue("no").id)
        inbox.send_many(range(3))
        for message in inbox.receive_many(2):
            message.ack()
        app.queue("inbox").pause()
        app.queue("inbox").resume()
        drain(app)
        clock.advance(random.randrange(4, 10) * DAY)


def rows(sql: Sql) -> Counter[str]:
    return Counter({table: len(sql(f"SELECT 1 FROM holdfast_{table}")) for table in TABLES})  # noqa: S608


def by_group(sql: Sql) -> Counter[tuple[str, str, str | None]]:
    return Counter(sql("SELECT status, queue, task FROM holdfast_jobs"))


def counts_of(report: PruneReport) -> dict[str, int]:
    return {name: getattr(report, name) for name in COUNTS}


@pytest.mark.parametrize("seed", range(a_part(3, 8)))
def test_a_dry_run_predicts_what_the_run_deletes(app: Holdfast, clock: FakeClock, sql: Sql, seed: int) -> None:
    grow(app, clock, Random(seed))
    kept_before, jobs_before = rows(sql), by_group(sql)
    predicted = app.prune(dry_run=True, retention=MIXED)
    assert (rows(sql), by_group(sql)) == (kept_before, jobs_before), "nothing was deleted"
    done = app.prune(retention=MIXED)
    assert counts_of(predicted) == counts_of(done) and all(counts_of(done).values())
    groups: Counter[tuple[str, str, str | None]] = Counter()
    for one in predicted.groups:
        groups[one.status, one.queue, one.task] += one.jobs
    assert groups == jobs_before - by_group(sql)
    gone = kept_before - rows(sql)
    assert (predicted.attempts, predicted.batches) == (gone["attempts"], gone["batches"])
    # The run leaves an event of its own; and one that keeps the last id, if that was of a job.
    extra = sql("SELECT count(*) FROM holdfast_events WHERE event IN ('pruned', 'removed') AND id > 0")[0][0]
    assert predicted.events is not None and gone["events"] == predicted.events + predicted.audit - extra
    again = app.prune(dry_run=True, retention=MIXED)
    assert (again.jobs, again.groups, again.attempts, again.events, again.blobs) == (0, (), 0, 0, 0)


def test_each_group_names_the_rule_that_deletes_it(app: Holdfast, clock: FakeClock) -> None:
    grow(app, clock, Random(1))
    clock.advance(100 * DAY)
    by_rule: Counter[str] = Counter()
    for one in app.prune(dry_run=True, retention=MIXED).groups:
        by_rule[one.rule] += one.jobs
        assert (one.task == "quick") == (one.rule == "task quick 5d")
    rules = {"succeeded 30d", "failed 60d", "cancelled 20d", "task quick 5d", "queue keep 50d"}
    assert by_rule.keys() == rules | {"queue mail succeeded 60d the newest 5"}


@pytest.mark.parametrize("retention", [Retention(), MIXED], ids=["by size alone", "by age first"])
def test_deletions_by_size_are_an_estimate(app: Holdfast, clock: FakeClock, retention: Retention) -> None:
    grow(app, clock, Random(2))
    app.queue("bulk").send_many(["x" * 500] * 400)
    for message in app.queue("bulk").receive_many(400):
        message.ack()
    most = app.store.file.used_bytes() * 6 // 10
    from msgspec.structs import replace

    rules = replace(retention, max_bytes=most)
    predicted = app.prune(dry_run=True, retention=rules)
    assert predicted.estimate is not None
    assert sum(one.jobs for one in predicted.groups) == predicted.jobs, "none counts twice"
    done = app.prune(retention=rules)
    assert 0.7 < predicted.jobs / done.jobs < 1.4, (predicted.jobs, done.jobs)
    assert any(one.rule == f"at most {most:,} bytes" for one in predicted.groups)
    assert app.prune(dry_run=True, retention=retention).estimate is None
