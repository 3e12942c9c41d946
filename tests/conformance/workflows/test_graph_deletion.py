"""Deletion respects graphs: what others wait for stays, or goes with them; a chain goes as a whole."""

from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Job, Task, Then
from holdfast.errors import HasWaitingJobs, InvalidInput, JobNotFound, PartOfChain
from support.flow import Flow, Sql, statuses
from support.running_worker import drain
from support.transitions import claim_tasks


def ids(app: Holdfast) -> list[int]:
    return sorted(job.id for job in app.jobs.list(limit=1000))


@pytest.fixture
def walk(app: Holdfast) -> Task[..., Any]:
    @app.task(queue="walk")
    def walk(left: int) -> Any:
        return Then(walk, left - 1) if left else "there"

    return walk


# --- what others wait for ---


@pytest.mark.parametrize("delete", ["jobs", "chains"])
def test_what_others_wait_for_is_not_deleted_and_they_are_named(app: Holdfast, flow: Flow, delete: str) -> None:
    a = flow.job("a", queue="elsewhere")
    waiting = [flow.job(name, a) for name in "bcd"]
    below = flow.job("below", waiting[0])
    target: Any = getattr(app, delete)
    with pytest.raises(HasWaitingJobs) as caught:
        target.delete(a.id)
    assert (caught.value.chain_id, caught.value.waiting) == (a.id, tuple(job.id for job in waiting))
    for job in waiting:
        assert str(job.id) in str(caught.value)
    assert "cascade=True" in str(caught.value)
    assert ids(app) == sorted(job.id for job in (a, *waiting, below))


def test_a_long_list_of_who_waits_is_complete_and_its_text_is_short(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    waiting = flow.step.using(after=a).enqueue_many([{"name": "x"}] * 2500)
    with pytest.raises(HasWaitingJobs) as caught:
        app.jobs.delete(a.id)
    assert caught.value.waiting == tuple(waiting)
    assert "2490 more" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("state", ["blocked", "scheduled", "ready"])
def test_a_result_that_is_still_to_be_read_is_kept(app: Holdfast, flow: Flow, state: str) -> None:
    a = flow.job("a")
    job = flow.job("b", a, queue="later", delay=60 if state == "scheduled" else 0)
    if state != "blocked":
        drain(app, queues=["default"])
    assert job.refresh().status == state
    with pytest.raises(HasWaitingJobs):
        app.jobs.delete(a.id)
    app.jobs.cancel(job.id)
    assert app.jobs.delete(a.id) is True, "nobody waits any more"
    assert ids(app) == [job.id]


def test_who_is_waited_for_may_go_when_those_who_waited_have_ended(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    b = flow.job("b", a)
    drain(app)
    assert app.jobs.delete(a.id) is True
    with pytest.raises(JobNotFound):
        app.jobs.delete(a.id)
    assert b.refresh().result == "B"


def test_who_waits_may_go_and_leaves_the_other(app: Holdfast, flow: Flow, sql: Sql) -> None:
    a = flow.job("a")
    b = flow.job("b", a)
    assert app.jobs.delete(b.id) is True
    assert sql("SELECT * FROM holdfast_blockers") == []
    assert app.jobs.delete(a.id) is True


# --- with all that waits ---


def test_with_cascade_all_that_waits_goes_too(app: Holdfast, flow: Flow, sql: Sql) -> None:
    a = flow.job("a")
    b, c = flow.job("b", a), flow.job("c", a)
    d = flow.job("d", b, c)
    ended = flow.job("ended", a)
    app.jobs.cancel(ended.id)
    other = flow.job("other")
    half = flow.job("half", other, d)
    assert app.jobs.delete(a.id, cascade=True, actor="ada") is True
    assert ids(app) == [ended.id, other.id], "what has ended and what is above stay"
    assert half.id not in ids(app)
    assert sql("SELECT DISTINCT job_id FROM holdfast_blockers") == [(ended.id,)]
    (note,) = [one for one in app.observe.events() if one.event == "deleted"]
    assert (note.job_id, note.actor, note.detail["count"]) == (None, "ada", 5)
    drain(app)
    assert flow.ran == ["other"]


def test_cascade_without_anybody_waiting_is_a_plain_deletion(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    assert app.jobs.delete(a.id, cascade=True) is True
    assert ids(app) == []


def test_cascade_goes_with_an_id(app: Holdfast, flow: Flow) -> None:
    flow.job("a")
    with pytest.raises(InvalidInput, match="cascade"):
        app.jobs.delete(cascade=True, status="ready")  # type: ignore[call-overload]
    for wrong in (1, "yes", None):
        with pytest.raises(InvalidInput):
            app.jobs.delete(1, cascade=wrong)  # type: ignore[call-overload]
        with pytest.raises(InvalidInput):
            app.chains.delete(1, cascade=wrong)
    assert len(ids(app)) == 1


def test_what_runs_keeps_all_of_it(app: Holdfast, flow: Flow, walk: Task[..., Any]) -> None:
    a = flow.job("a")
    drain(app)
    b = flow.job("b", a)
    flow.job("c", b)
    (claimed,) = claim_tasks(app.store, None, ["step"], 1, 10**9, "worker")
    assert claimed.id == b.id
    before = ids(app)
    assert app.jobs.delete(b.id, cascade=True) is False
    assert app.jobs.delete(a.id, cascade=True) is False
    assert app.chains.delete(a.id, cascade=True) is False
    assert ids(app) == before


def test_a_cascade_down_a_long_line(app: Holdfast, flow: Flow) -> None:
    with app.transaction() as tx:
        jobs = [flow.job("n0", conn=tx)]
        for n in range(1, 2000):
            jobs.append(flow.job(f"n{n}", jobs[-1], conn=tx))
    assert app.jobs.delete(jobs[0].id, cascade=True) is True
    assert app.jobs.count() == 0


# --- a chain goes as a whole ---


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_job_of_a_longer_chain_does_not_go_alone(app: Holdfast, walk: Task[..., Any], place: int) -> None:
    root = walk.enqueue(3)
    drain(app)
    jobs = app.chains.get(root.id).jobs()
    with pytest.raises(PartOfChain, match=f"one of 4 in chain {root.id}"):
        app.jobs.delete(jobs[place].id)
    with pytest.raises(PartOfChain):
        app.jobs.delete(jobs[place].id, cascade=True)
    assert len(ids(app)) == 4
    assert app.chains.delete(jobs[place].id) is True, "by the id of any of its jobs"
    assert ids(app) == []


def test_a_chain_that_others_wait_for(app: Holdfast, flow: Flow, walk: Task[..., Any]) -> None:
    root = walk.enqueue(2)
    waiting = flow.job("waiting", root, queue="later")
    (claimed,) = claim_tasks(app.store, None, ["walk"], 1, 10**9, "worker")
    assert app.chains.delete(root.id, cascade=True) is False, "it runs"
    app.jobs.complete(claimed.id)
    with pytest.raises(HasWaitingJobs) as caught:
        app.chains.delete(root.id)
    assert (caught.value.chain_id, caught.value.waiting) == (root.id, (waiting.id,))
    assert app.chains.delete(root.id, cascade=True) is True
    assert ids(app) == []


def test_who_waits_goes_with_the_chain_that_it_is_part_of(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a", queue="elsewhere")

    @app.task
    def root(ctx: Context) -> Then:
        return Then(flow.step.using(after=a), "waits")

    first = root.enqueue()
    drain(app, queues=["default"])
    last = app.chains.get(first.id).last
    with pytest.raises(HasWaitingJobs) as caught:
        app.jobs.delete(a.id)
    assert caught.value.waiting == (last.id,)
    assert app.jobs.delete(a.id, cascade=True) is True
    assert ids(app) == [], "no half chain is left"


def test_a_chain_that_is_gone_is_not_found(app: Holdfast, walk: Task[..., Any]) -> None:
    root = walk.enqueue(1)
    drain(app)
    chain = app.chains.get(root.id)
    app.chains.delete(root.id)
    for look in (chain.refresh, lambda: app.chains.get(root.id), lambda: app.chains.delete(root.id)):
        with pytest.raises(JobNotFound):
            look()
    assert chain.jobs() == []


# --- by filters ---


def test_by_filters_what_others_wait_for_is_left(app: Holdfast, flow: Flow) -> None:
    a, b = flow.job("a"), flow.job("b")
    flow.job("waits", a, queue="later")
    drain(app, queues=["default"])
    assert app.jobs.delete(status="succeeded") == 1
    assert a.id in ids(app)
    assert b.id not in ids(app)


def test_by_filters_a_chain_goes_if_all_its_jobs_fit(app: Holdfast, flow: Flow, walk: Task[..., Any]) -> None:
    @app.task(queue="walk")
    def begin() -> Then:
        return Then(flow.step.using(queue="far"), "end")

    whole = [walk.enqueue(n) for n in (0, 1, 2)]
    parted = begin.enqueue()
    drain(app, queues=["walk"])
    going = walk.enqueue(1)
    assert app.jobs.delete(queue="walk", status="succeeded") == 6, "1, 2 and 3 jobs"
    left = [job.id for job in app.chains.get(parted.id).jobs()]
    assert ids(app) == sorted([*left, going.id])
    assert len(left) == 2
    drain(app)
    assert app.jobs.delete(status="succeeded", queue=["walk", "far"]) == 4
    assert ids(app) == []
    assert len(whole) == 3


def test_by_filters_a_chain_stays_if_one_of_its_jobs_lacks_what_was_asked_for(app: Holdfast) -> None:
    """A value that is not there is no match: neither an error code, nor a key, nor an end."""

    @app.task
    def fails() -> Fail:
        return Fail("TEST:BROKEN")

    @app.task
    def root() -> Then:
        return Then(fails)

    root.using(key="k").enqueue()
    drain(app)
    before = ids(app)
    assert app.jobs.delete(error_code="TEST:BROKEN") == 0, "its first job succeeded"
    assert app.jobs.delete(key="k") == 0, "its last job has no key"
    assert ids(app) == before


def test_by_filters_many_long_chains_go(app: Holdfast, walk: Task[..., Any]) -> None:
    """Their jobs lie far apart, on more pages than one."""
    walk.enqueue_many([{"left": 9}] * 150)
    drain(app)
    assert app.jobs.count() == 1500
    assert app.jobs.delete(status="succeeded") == 1500
    assert app.jobs.count() == 0


def test_by_filters_who_waits_goes_and_what_it_waited_for_the_next_time(app: Holdfast, flow: Flow) -> None:
    line = [flow.job("a")]
    for name in "bc":
        line.append(flow.job(name, line[-1]))
    deleted = 0
    for _ in range(3):
        deleted += app.jobs.delete(queue="default")
    assert (deleted, ids(app)) == (3, [])


def test_deleting_what_failed_does_not_wake_who_holds(app: Holdfast, flow: Flow) -> None:
    bad = flow.failed_job()
    held = flow.job("held", bad)
    assert app.jobs.delete(status="failed") == 0
    drain(app)
    assert statuses(bad, held) == ["failed", "blocked"]


def test_a_row_that_is_gone_without_asking_holds_nobody_for_ever(app: Holdfast, flow: Flow, sql: Sql) -> None:
    """By plain SQL: by its policy each goes on as if it had been cancelled."""
    a = flow.job("a", queue="elsewhere")
    jobs: dict[str, Job[Any]] = {
        policy: flow.job(policy, a, on_blocker_failure=policy) for policy in ("hold", "fail", "cancel", "run")
    }
    sql("DELETE FROM holdfast_jobs WHERE id = ?", (a.id,))
    drain(app)
    assert statuses(*jobs.values()) == ["blocked", "failed", "cancelled", "succeeded"]
    assert flow.found["run"] == (None,)
