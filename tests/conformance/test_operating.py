"""What an operator does to jobs: retry, cancel, run_now, delete; one by id, or many by filter."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.errors import InvalidInput, JobNotFound
from holdfast.failure import Failure
from holdfast.model.job import Claimed, Lease
from holdfast.testing import FakeClock
from support.transitions import claim_tasks, fail, retry, stop, succeed

Claim = Callable[..., Claimed]
Events = Callable[[int], list[str]]


@pytest.fixture
def work(app: Holdfast) -> Task[[], None]:
    @app.task(max_attempts=3)
    def work() -> None: ...

    return work


@pytest.fixture
def make(app: Holdfast, work: Task[[], None]) -> Callable[..., int]:
    """Makes a job and brings it into a state."""

    def bring_to(state: str, **options: Any) -> int:
        if state == "scheduled":
            options["delay"] = 60
        id = work.using(**options).enqueue().id
        if state in ("running", "succeeded", "failed"):
            (claimed,) = claim_tasks(app.store, None, ["work"], 1, 30_000_000, "worker-1")
            assert claimed.id == id
            if state == "succeeded":
                succeed(app.store, claimed.lease, "42")
            elif state == "failed":
                fail(app.store, claimed.lease, Failure("DEPENDENCY:X", "broke"))
        elif state == "cancelled":
            app.jobs.cancel(id)
        assert app.jobs.get(id).status == state
        return id

    return bring_to


ALL = ["scheduled", "ready", "running", "succeeded", "failed", "cancelled"]

# What each action makes of each state; a state that is not named is left as it is.
TRANSITIONS: dict[str, dict[str, str | None]] = {
    "retry": {"failed": "ready", "cancelled": "ready"},
    "cancel": {"scheduled": "cancelled", "ready": "cancelled", "running": "cancelled"},
    "run_now": {"scheduled": "ready"},
    "delete": dict.fromkeys(["scheduled", "ready", "succeeded", "failed", "cancelled"]),
}


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("action", TRANSITIONS)
def test_an_action_does_what_the_state_allows(
    app: Holdfast, make: Callable[..., int], action: str, state: str
) -> None:
    id = make(state)
    before, history = app.store.jobs.get(id), app.store.jobs.history(id)
    done = getattr(app.jobs, action)(id)
    after = app.store.jobs.get(id)
    assert done is (state in TRANSITIONS[action])
    if not done:
        assert after == before
        assert app.store.jobs.history(id) == history
    elif (expected := TRANSITIONS[action][state]) is None:
        assert after is None
    else:
        assert after is not None and after.status == expected


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("action", TRANSITIONS)
def test_an_action_by_filter_does_the_same_to_all_that_fit(
    app: Holdfast, make: Callable[..., int], action: str, state: str
) -> None:
    made = [make(state, tags="mine") for _ in range(2)]
    other = make("ready")
    count = getattr(app.jobs, action)(tag="mine")
    assert (type(count), count) == (int, 2 if state in TRANSITIONS[action] else 0)
    expected = TRANSITIONS[action].get(state, state)
    for id in made:
        record = app.store.jobs.get(id)
        assert (None if record is None else record.status) == expected
    assert app.jobs.get(other).status == "ready"


@pytest.mark.parametrize("action", TRANSITIONS)
def test_an_action_on_no_job_says_so(app: Holdfast, action: str) -> None:
    with pytest.raises(JobNotFound):
        getattr(app.jobs, action)(77)


@pytest.mark.parametrize("action", TRANSITIONS)
def test_an_action_on_everything_needs_to_be_asked_for(app: Holdfast, work: Task[[], None], action: str) -> None:
    work.enqueue()
    with pytest.raises(InvalidInput, match="no jobs were named"):
        getattr(app.jobs, action)()


@pytest.mark.parametrize("action", TRANSITIONS)
def test_an_id_and_filters_together_are_refused(app: Holdfast, work: Task[[], None], action: str) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        getattr(app.jobs, action)(work.enqueue().id, status="ready")


def test_an_action_by_filter_reaches_thousands(app: Holdfast) -> None:
    app.queue("inbox").send_many(range(2500))
    app.queue("other").send("stays")
    assert app.jobs.cancel(queue="inbox", status="ready") == 2500
    assert app.jobs.delete(queue="inbox", status="cancelled") == 2500
    assert [job.queue for job in app.jobs.list()] == ["other"]


# --- retry ---


def test_retry_goes_on_counting_attempts_and_raises_the_limit(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("failed", max_attempts=1)
    app.jobs.retry(id)
    job = app.jobs.get(id)
    assert (job.attempt, job.max_attempts, job.finished_at) == (1, 2, None)


def test_retry_may_give_several_attempts(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("failed", max_attempts=1)
    app.jobs.retry(id, attempts=4)
    assert app.jobs.get(id).max_attempts == 5


def test_retry_does_not_lower_the_limit(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("failed", max_attempts=9)
    app.jobs.retry(id, attempts=1)
    assert app.jobs.get(id).max_attempts == 9


def test_retry_with_a_delay_waits(app: Holdfast, make: Callable[..., int], clock: FakeClock, claim: Claim) -> None:
    id = make("failed")
    app.jobs.retry(id, delay=60)
    assert app.jobs.get(id).status == "scheduled"
    clock.advance(60)
    assert claim("work").id == id


def test_a_retried_job_has_no_worker(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("failed")
    app.jobs.retry(id)
    assert app.jobs.get(id).worker is None


def test_retry_leaves_a_job_whose_key_lives_on_in_another(app: Holdfast, make: Callable[..., int]) -> None:
    dead = make("failed", key="k")
    make("ready", key="k")
    assert app.jobs.retry(dead) is False
    assert app.jobs.get(dead).status == "failed"


def test_retry_of_two_with_the_same_key_revives_one(app: Holdfast, make: Callable[..., int]) -> None:
    made = [make("failed", key="k"), make("failed", key="k")]
    assert app.jobs.retry(status="failed") == 1
    assert sorted(app.jobs.get(id).status for id in made) == ["failed", "ready"]


# --- cancel ---


def test_cancel_fences_the_attempt_that_runs(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("running")
    app.jobs.cancel(id)
    assert succeed(app.store, Lease(id, 1)) is False
    assert app.jobs.get(id).status == "cancelled"


def test_cancel_keeps_its_reason(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("ready")
    app.jobs.cancel(id, reason="ordered twice")
    assert app.jobs.get(id).error_detail == "ordered twice"


@pytest.mark.parametrize("by", ["an operator", "the attempt itself"])
def test_a_cancelled_job_does_not_tell_the_error_of_an_earlier_attempt(
    app: Holdfast, work: Task[[], None], claim: Claim, by: str
) -> None:
    job = work.enqueue()
    retry(app.store, claim().lease, 0, Failure("DEPENDENCY:SMTP", "refused"))
    if by == "an operator":
        app.jobs.cancel(job.id, reason="ordered twice")
    else:
        stop(app.store, claim().lease, "ordered twice")
    job.refresh()
    assert (job.status, job.error_code, job.error_detail) == ("cancelled", None, "ordered twice")


def test_a_long_reason_is_shortened_like_any_detail(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("ready")
    app.jobs.cancel(id, reason="x" * 10_000)
    detail = app.jobs.get(id).error_detail
    assert detail is not None and len(detail) <= 500


def test_a_cancelled_job_is_never_claimed(app: Holdfast, make: Callable[..., int], clock: FakeClock) -> None:
    make("cancelled")
    app.jobs.cancel(make("scheduled"))
    clock.advance(10_000)
    assert claim_tasks(app.store, None, ["work"], 10, 1, "worker-1") == []


# --- run_now, delete ---


def test_run_now_does_not_wait_for_the_time(app: Holdfast, make: Callable[..., int], claim: Claim) -> None:
    id = make("scheduled")
    app.jobs.run_now(id)
    assert claim("work").id == id


def test_run_now_sets_the_time_to_now(app: Holdfast, make: Callable[..., int], clock: FakeClock) -> None:
    id = make("scheduled")
    clock.advance(5)
    app.jobs.run_now(id)
    job = app.jobs.get(id)
    assert job.run_at == job.created_at + timedelta(seconds=5)


def test_delete_takes_attempts_events_and_tags_along(
    app: Holdfast, make: Callable[..., int], sql: Callable[..., list[Any]]
) -> None:
    id = make("succeeded", tags=["a", "b"])
    app.jobs.delete(id)
    for table in ("attempts", "events", "tags"):
        assert sql(f"SELECT count(*) FROM holdfast_{table} WHERE job_id = {id}") == [(0,)]  # noqa: S608


def test_ids_are_never_reused(app: Holdfast, make: Callable[..., int]) -> None:
    id = make("ready")
    app.jobs.delete(id)
    assert make("ready") > id


def test_ids_are_not_reused_by_the_next_process_either(open_app: Callable[..., Holdfast]) -> None:
    with open_app() as first:
        id = first.queue("inbox").send("x")
        first.queue("inbox").purge()
    assert open_app().queue("inbox").send("y") > id


@pytest.mark.parametrize(
    ("action", "state", "event"),
    [("retry", "failed", "requeued"), ("cancel", "ready", "cancelled"), ("run_now", "scheduled", "run_now")],
)
def test_an_action_is_logged_with_who_did_it(
    app: Holdfast, make: Callable[..., int], action: str, state: str, event: str
) -> None:
    id = make(state)
    getattr(app.jobs, action)(id, actor="ada")
    last = app.jobs.history(id)[-1]
    assert (last.name, last.actor) == (event, "ada")


def test_without_a_name_the_login_is_logged(
    app: Holdfast, make: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    id = make("ready")
    app.jobs.cancel(id)
    assert app.jobs.history(id)[-1].actor == "grace"


def test_a_deletion_is_logged_with_who_did_it(
    app: Holdfast, make: Callable[..., int], sql: Callable[..., list[Any]]
) -> None:
    app.jobs.delete(make("ready"), actor="ada")
    assert sql("SELECT event, actor FROM holdfast_events WHERE job_id IS NULL AND event = 'deleted'") == [
        ("deleted", "ada")
    ]
