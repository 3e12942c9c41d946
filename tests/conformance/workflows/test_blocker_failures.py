"""What becomes of a job when something that it waits for does not end well: hold, fail, cancel or run."""

from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Job, Then
from holdfast.errors import InvalidInput, JobFailed
from holdfast.testing import FakeClock
from support.flow import Events, Flow, Sql, statuses
from support.running_worker import attempts, drain

POLICIES = {"hold": "blocked", "fail": "failed", "cancel": "cancelled", "run": "ready"}
"""Each, and the state that it leads to."""


def all_policies(flow: Flow, *after: Any) -> list[Job[str]]:
    return [flow.job(policy, *after, on_blocker_failure=policy) for policy in POLICIES]


# --- each policy ---


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_each_policy_for_a_blocker_that_did_not_end_well(app: Holdfast, flow: Flow, ending: str, when: str) -> None:
    blocker = flow.job("a")

    def end() -> None:
        if ending == "failed":
            app.jobs.fail(blocker.id, "TEST:BROKEN")
        else:
            app.jobs.cancel(blocker.id)

    if when == "before":
        end()
    jobs = all_policies(flow, blocker)
    if when == "after":
        assert [job.status for job in jobs] == ["blocked"] * 4
        end()
    else:
        assert [job.status for job in jobs] == list(POLICIES.values()), "as enqueue returns them"
    assert dict(zip(POLICIES, statuses(*jobs), strict=True)) == POLICIES
    assert [job.on_blocker_failure for job in jobs] == list(POLICIES)


def test_hold_is_what_happens_if_nothing_is_said(app: Holdfast, flow: Flow) -> None:
    job = flow.job("b", flow.failed_job())
    drain(app)
    assert (job.refresh().status, job.on_blocker_failure, flow.ran) == ("blocked", "hold", [])


@pytest.mark.parametrize("policy", ["wait", "", None, 3, ["fail"]])
def test_another_policy_is_refused(flow: Flow, policy: Any) -> None:
    with pytest.raises(InvalidInput, match="'hold', 'fail', 'cancel' or 'run'"):
        flow.step.using(after=[1], on_blocker_failure=policy)


def test_a_policy_is_about_something_that_is_waited_for(app: Holdfast, flow: Flow) -> None:
    with pytest.raises(InvalidInput, match="after"):
        flow.step.using(on_blocker_failure="fail").enqueue("x")
    job = flow.step.using(after=[], on_blocker_failure="fail").enqueue("nobody is waited for, as it turns out")
    assert job.status == "ready"


def test_a_job_that_fails_for_a_blocker_says_for_which(app: Holdfast, flow: Flow, events: Events) -> None:
    good, bad = flow.job("good"), flow.job("bad")
    flow.broken.add("bad")
    job = flow.job("job", good, bad, on_blocker_failure="fail")
    report = drain(app)
    assert (job.refresh().status, job.attempt, job.error_code) == ("failed", 0, "DEPENDENCY:BLOCKER")
    assert job.error_detail == f"the chain {bad.id}, which it waited for, failed"
    assert job.finished_at is not None
    assert (events(job.id), attempts(app, job.id)) == (["enqueued", "failed"], [])
    with pytest.raises(JobFailed, match="DEPENDENCY:BLOCKER"):
        job.wait(timeout=0)
    assert report.failed == 1, "only the one that ran"


def test_a_job_that_is_cancelled_for_a_blocker_says_for_which(app: Holdfast, flow: Flow, events: Events) -> None:
    blocker = flow.job("a")
    job = flow.job("job", blocker, on_blocker_failure="cancel")
    app.jobs.cancel(blocker.id, reason="not today")
    assert (job.refresh().status, job.error_code) == ("cancelled", None)
    assert job.error_detail == f"the chain {blocker.id}, which it waited for, was cancelled"
    assert events(job.id) == ["enqueued", "cancelled"]


def test_a_job_that_runs_all_the_same_finds_what_went_wrong(app: Holdfast, flow: Flow, sql: Sql) -> None:
    seen: list[Any] = []

    @app.task
    def sum_up(ctx: Context) -> None:
        seen.extend(ctx.blocker_results)

    flow.broken.add("bad")
    good, bad, gone, lost = (flow.job(name) for name in ("good", "bad", "gone", "lost"))
    job = sum_up.using(after=[bad, good, gone, lost], on_blocker_failure="run").enqueue()
    app.jobs.cancel(gone.id, reason="no more")
    assert job.refresh().status == "blocked", "until all have ended"
    drain(app, queues=["elsewhere"])
    sql("UPDATE holdfast_jobs SET status = 'succeeded' WHERE id = ?", (lost.id,))
    sql("DELETE FROM holdfast_jobs WHERE id = ?", (lost.id,))
    drain(app)
    failed, result, cancelled, nothing = seen
    assert isinstance(failed, JobFailed)
    assert (failed.job_id, failed.status, failed.code) == (bad.id, "failed", "DEPENDENCY:CONNECTION")
    assert failed.detail == "ConnectionError: bad is broken"
    assert result == "GOOD"
    assert isinstance(cancelled, JobFailed)
    assert (cancelled.job_id, cancelled.status, cancelled.detail) == (gone.id, "cancelled", "no more")
    assert nothing is None
    assert job.refresh().status == "succeeded"


def test_one_bad_blocker_is_enough_while_others_go_on(app: Holdfast, flow: Flow) -> None:
    good, bad = flow.job("good"), flow.job("bad")
    jobs = all_policies(flow, good, bad)
    app.jobs.fail(bad.id, "TEST:BROKEN")
    assert statuses(*jobs) == ["blocked", "failed", "cancelled", "blocked"]
    drain(app)
    assert statuses(*jobs) == ["blocked", "failed", "cancelled", "succeeded"]
    assert flow.ran == ["good", "run"]


def test_what_fails_in_the_middle_of_a_chain_counts_as_the_chain(app: Holdfast, flow: Flow) -> None:
    @app.task
    def root() -> Then:
        return Then(second)

    @app.task
    def second() -> Fail:
        return Fail("TEST:BROKEN")

    first = root.enqueue()
    jobs = all_policies(flow, first)
    drain(app)
    assert statuses(*jobs) == ["blocked", "failed", "cancelled", "succeeded"]
    assert jobs[1].error_detail == f"the chain {first.id}, which it waited for, failed"
    (found,) = flow.found["run"]
    assert (found.job_id, found.code) == (app.chains.get(first.id).last.id, "TEST:BROKEN")


def test_a_blocker_that_is_tried_again_has_not_ended(app: Holdfast, flow: Flow) -> None:
    @app.task(max_attempts=3, retry=0)
    def third_time(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError
        return ctx.attempt

    blocker = third_time.enqueue()
    jobs = all_policies(flow, blocker)
    drain(app)
    assert statuses(*jobs) == ["succeeded"] * 4
    assert flow.found["fail"] == (3,)


# --- down the graph ---


def test_it_goes_down_the_graph(app: Holdfast, flow: Flow) -> None:
    top = flow.job("top")
    a = flow.job("a", top, on_blocker_failure="fail")
    b = flow.job("b", a, on_blocker_failure="cancel")
    c = flow.job("c", b, on_blocker_failure="fail")
    held = flow.job("held", c)
    run = flow.job("run", c, on_blocker_failure="run")
    below = flow.job("below", run, on_blocker_failure="fail")
    app.jobs.fail(top.id, "TEST:BROKEN")
    assert statuses(a, b, c, held, run, below) == ["failed", "cancelled", "failed", "blocked", "ready", "blocked"]
    assert c.error_detail == f"the chain {b.id}, which it waited for, was cancelled"
    drain(app)
    assert statuses(run, below, held) == ["succeeded", "succeeded", "blocked"]


def test_a_failed_side_of_a_diamond(app: Holdfast, flow: Flow) -> None:
    flow.broken.add("left")
    top = flow.job("top")
    left, right = flow.job("left", top), flow.job("right", top)
    bottom = flow.job("bottom", left, right, on_blocker_failure="fail")
    drain(app)
    assert statuses(top, left, right, bottom) == ["succeeded", "failed", "succeeded", "failed"]


@pytest.mark.parametrize("policy", ["fail", "cancel"])
def test_it_goes_down_a_line_of_three_thousand(app: Holdfast, flow: Flow, policy: str) -> None:
    """Deeper than SQLite lets triggers call each other."""
    with app.transaction() as tx:
        jobs = [flow.job("n0", conn=tx)]
        for n in range(1, 3000):
            jobs.append(flow.job(f"n{n}", jobs[-1], on_blocker_failure=policy, conn=tx))
    app.jobs.cancel(jobs[0].id)
    drain(app)
    ended = {"fail": "failed", "cancel": "cancelled"}[policy]
    assert (app.jobs.count(status="blocked"), app.jobs.count(status=ended)) == (0, 3000 - (policy == "fail"))
    assert flow.ran == []
    assert (jobs[-1].refresh().status, str(jobs[-2].id) in (jobs[-1].error_detail or "")) == (ended, True)


@pytest.mark.parametrize("policy", POLICIES)
def test_five_thousand_wait_for_one_that_fails(app: Holdfast, flow: Flow, sql: Sql, policy: str) -> None:
    blocker = flow.job("a")
    bound = flow.step.using(after=blocker, on_blocker_failure=policy, queue="after")  # type: ignore[arg-type]
    bound.enqueue_many([{"name": f"n{n}"} for n in range(5000)])
    app.jobs.fail(blocker.id, "TEST:BROKEN")
    drain(app, queues=["default"])
    assert app.jobs.count(queue="after", status=POLICIES[policy]) == 5000
    changes = "SELECT count(*), count(DISTINCT job_id) FROM holdfast_events WHERE job_id <> ? AND event <> 'enqueued'"
    assert sql(changes, (blocker.id,)) == ([(0, 0)] if policy == "hold" else [(5000, 5000)])
    assert sql("SELECT * FROM holdfast_endings") == []
    drain(app)
    assert len(flow.ran) == (5000 if policy == "run" else 0)


# --- coming back ---


def test_what_is_held_goes_on_when_its_blocker_is_retried_and_succeeds(app: Holdfast, flow: Flow) -> None:
    flow.broken.add("a")
    blocker = flow.job("a")
    held = flow.job("held", blocker)
    drain(app)
    assert statuses(blocker, held) == ["failed", "blocked"]
    app.jobs.retry(blocker.id)
    drain(app)
    assert statuses(blocker, held) == ["failed", "blocked"], "it has failed once more"
    flow.broken.clear()
    app.jobs.retry(blocker.id)
    drain(app)
    assert statuses(blocker, held) == ["succeeded", "succeeded"]
    assert flow.found["held"] == ("A",)


def test_what_is_held_goes_on_when_its_blocker_is_completed_by_hand(app: Holdfast, flow: Flow) -> None:
    blocker = flow.failed_job()
    held = flow.job("held", blocker)
    app.jobs.retry(blocker.id, delay=1000)
    app.jobs.complete(blocker.id, "by hand")
    drain(app)
    assert flow.found["held"] == ("by hand",)
    assert held.refresh().status == "succeeded"


@pytest.mark.parametrize("policy", ["fail", "cancel"])
def test_a_retried_job_waits_again_for_what_it_gave_up_on(
    app: Holdfast, flow: Flow, events: Events, policy: str
) -> None:
    good, bad = flow.job("good"), flow.failed_job("bad")
    drain(app)
    job = flow.job("job", good, bad, on_blocker_failure=policy)
    assert job.is_finished
    assert app.jobs.retry(job.id)
    drain(app)
    assert job.refresh().status == "blocked", "until its blocker has ended well"
    app.jobs.retry(bad.id)
    drain(app)
    assert (job.refresh().status, flow.found["job"]) == ("succeeded", ("GOOD", "BAD"))
    ended = {"fail": "failed", "cancel": "cancelled"}[policy]
    assert events(job.id) == ["enqueued", ended, "requeued", "unblocked", "claimed", "succeeded"]


@pytest.mark.parametrize("policy", ["fail", "cancel"])
def test_a_retried_job_that_waits_again_ends_again_if_its_blocker_does(
    app: Holdfast, flow: Flow, policy: str
) -> None:
    flow.broken.add("bad")
    bad = flow.job("bad")
    job = flow.job("job", bad, on_blocker_failure=policy)
    drain(app)
    app.jobs.retry(job.id)
    app.jobs.retry(bad.id)
    assert statuses(bad, job) == ["ready", "blocked"]
    drain(app)
    assert statuses(bad, job) == ["failed", {"fail": "failed", "cancel": "cancelled"}[policy]]


def test_a_retried_job_is_ready_if_its_blocker_has_succeeded_since(
    app: Holdfast, flow: Flow, clock: FakeClock
) -> None:
    bad = flow.failed_job()
    one, other = (flow.job(name, bad, on_blocker_failure="fail") for name in ("one", "other"))
    app.jobs.retry(bad.id)
    drain(app)
    assert statuses(bad, one, other) == ["succeeded", "failed", "failed"], "it does not come back by itself"
    app.jobs.retry(one.id)
    app.jobs.retry(other.id, delay=60)
    assert statuses(one, other) == ["ready", "scheduled"]
    drain(app)
    assert flow.found["one"] == ("BAD",)


def test_all_of_a_graph_may_be_retried_at_once(app: Holdfast, flow: Flow) -> None:
    flow.broken.add("top")
    top = flow.job("top")
    a = flow.job("a", top, on_blocker_failure="fail")
    b = flow.job("b", a, on_blocker_failure="fail")
    drain(app)
    assert statuses(top, a, b) == ["failed"] * 3
    flow.broken.clear()
    assert app.jobs.retry(status="failed") == 3
    assert statuses(top, a, b) == ["ready", "blocked", "blocked"]
    drain(app)
    assert flow.ran == ["top", "top", "a", "b"]


def test_a_job_that_ran_in_spite_of_its_blocker_runs_again_when_it_is_retried(app: Holdfast, flow: Flow) -> None:
    flow.broken.add("job")
    job = flow.job("job", flow.failed_job(), on_blocker_failure="run")
    drain(app)
    assert job.refresh().status == "failed"
    flow.broken.clear()
    app.jobs.retry(job.id)
    drain(app)
    assert (job.refresh().status, job.attempt) == ("succeeded", 2)
    assert isinstance(flow.found["job"][0], JobFailed)


def test_a_job_that_was_cancelled_and_is_retried_looks_at_what_became_of_its_blocker(
    app: Holdfast, flow: Flow
) -> None:
    """While it was cancelled, it was not concerned; now its policy says what to do."""
    blocker = flow.job("a", queue="elsewhere")
    jobs = all_policies(flow, blocker)
    for job in jobs:
        app.jobs.cancel(job.id)
    app.jobs.fail(blocker.id, "TEST:BROKEN")
    assert statuses(*jobs) == ["cancelled"] * 4
    for job in jobs:
        assert app.jobs.retry(job.id)
    drain(app)
    assert jobs[0].refresh().status == "blocked"
    assert jobs[3].refresh().status == "succeeded", "it runs however its blocker ended"
    app.jobs.retry(blocker.id)
    drain(app)
    assert (statuses(blocker, jobs[0]), flow.ran) == (["succeeded", "succeeded"], ["run", "a", "hold"])


@pytest.mark.parametrize("policy", ["fail", "cancel"])
def test_a_retried_job_does_not_wait_for_a_blocker_that_was_deleted(app: Holdfast, flow: Flow, policy: str) -> None:
    bad = flow.failed_job()
    job = flow.job("job", bad, on_blocker_failure=policy)
    assert app.jobs.delete(bad.id)
    app.jobs.retry(job.id)
    drain(app)
    assert job.refresh().status != "blocked", "for ever, by nothing"


# --- a blocked job in an operator's hands ---


def test_a_blocked_job_may_be_cancelled_and_its_blockers_end_does_not_bring_it_back(
    app: Holdfast, flow: Flow
) -> None:
    blocker = flow.job("a")
    job = flow.job("b", blocker)
    below = flow.job("c", job, on_blocker_failure="cancel")
    assert app.jobs.cancel(job.id, reason="not any more")
    assert statuses(job, below) == ["cancelled", "cancelled"]
    drain(app)
    assert (flow.ran, job.refresh().status) == (["a"], "cancelled")
    app.jobs.retry(job.id)
    assert job.refresh().status == "ready", "its blocker has ended meanwhile"


def test_a_cancelled_job_that_is_retried_is_blocked_as_it_was(app: Holdfast, flow: Flow) -> None:
    blocker = flow.job("a")
    job = flow.job("b", blocker)
    app.jobs.cancel(job.id)
    app.jobs.retry(job.id)
    assert job.refresh().status == "blocked"
    drain(app)
    assert flow.ran == ["a", "b"]


def test_a_blocked_job_may_be_completed_by_hand_and_is_not_run(app: Holdfast, flow: Flow) -> None:
    blocker = flow.job("a")
    job = flow.job("b", blocker)
    below = flow.job("c", job)
    assert app.jobs.complete(job.id, "skipped")
    drain(app)
    assert sorted(flow.ran) == ["a", "c"]
    assert flow.found["c"] == ("skipped",)
    assert below.refresh().status == "succeeded"


def test_a_blocked_job_is_not_run_now(app: Holdfast, flow: Flow) -> None:
    job = flow.job("b", flow.job("a"), delay=60)
    assert app.jobs.run_now(job.id) is False
    assert job.refresh().status == "blocked"
