"""`app.jobs.explain`: why a job waits, how it runs or how it ended, in one sentence, and what would change that."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, JobError, Snooze, Then, fixed
from holdfast.app.explain import START_WORKER, Explanation
from holdfast.clock import SECOND
from holdfast.errors import InvalidInput, JobNotFound
from holdfast.model.job import Claimed, Criteria, Settlement
from holdfast.testing import FakeClock
from support.running_worker import drain
from support.transitions import recover, resolve

Claim = Callable[..., Claimed]
Sql = Callable[..., list[Any]]


@pytest.fixture
def work(app: Holdfast) -> Any:
    @app.task(max_attempts=3, retry=fixed(60))
    def work(ctx: Context, how: str = "") -> Any:
        if how == "raise":
            raise JobError("DEPENDENCY:SMTP", "503 busy.")
        ends = {
            "snooze": Snooze(600),
            "fail": Fail("INVALID_INPUT:SCHEMA", "no such field"),
            "cancel": Cancel("not wanted"),
            "go on": Then(work),
        }
        return ends.get(how)

    return work


@pytest.fixture
def why(app: Holdfast) -> Callable[[Any], str]:
    """The reason and the advice as one text."""
    return lambda job: str(app.jobs.explain(job if isinstance(job, int) else job.id))


def test_an_explanation_is_data_and_text(app: Holdfast, work: Any) -> None:
    job = work.using(delay=90).enqueue()
    found = app.jobs.explain(job.id)
    assert isinstance(found, Explanation)
    assert (found.job_id, found.status) == (job.id, "scheduled")
    assert str(found) == f"{found.reason} {found.advice}"


def test_there_must_be_such_a_job(app: Holdfast) -> None:
    with pytest.raises(JobNotFound, match="there is no job 99"):
        app.jobs.explain(99)
    with pytest.raises(InvalidInput):
        app.jobs.explain("1")  # type: ignore[arg-type]


# --- scheduled ---


def test_a_delay(work: Any, why: Any) -> None:
    assert why(work.using(delay=5400).enqueue()) == (
        "Job 1 (work) is scheduled, and due at 2023-11-14 23:43:20 UTC, in 1h 30m. Run it now: holdfast run-now 1"
    )


def test_a_retry_says_after_which_error(app: Holdfast, work: Any, why: Any) -> None:
    job = work.enqueue("raise")
    drain(app)
    assert why(job) == (
        "Job 1 (work) will be retried at 2023-11-14 22:14:20 UTC, in 1m, since attempt 1 of 3 failed with "
        "DEPENDENCY:SMTP: 503 busy. Run it now: holdfast run-now 1"
    )


def test_a_snooze(app: Holdfast, work: Any, why: Any) -> None:
    job = work.enqueue("snooze")
    drain(app)
    assert "is snoozed until 2023-11-14 22:23:20 UTC, in 10m, as its task requested." in why(job)


def test_a_message_that_was_given_back(app: Holdfast, why: Any) -> None:
    app.queue("inbox").send(1)
    message = app.queue("inbox").receive()
    assert message is not None and message.release(delay=30)
    assert "Message 1 was released after attempt 1 of 5, and is due at " in why(1)


def test_an_operator_s_retry_with_a_delay(app: Holdfast, work: Any, why: Any) -> None:
    job = work.enqueue()
    app.jobs.cancel(job.id)
    app.jobs.retry(job.id, delay=60, actor="kim")
    assert "was retried by kim with a delay, and is due at 2023-11-14 22:14:20 UTC, in 1m." in why(job)


def test_one_that_is_due_and_that_nobody_has_noticed(work: Any, why: Any, clock: FakeClock) -> None:
    job = work.using(delay=60).enqueue()
    clock.advance(180)
    assert why(job).startswith("Job 1 (work) has been due for 2m, but no worker is running. ")


# --- blocked ---


def test_what_it_waits_for_is_named_with_its_state(work: Any, why: Any, claim: Claim) -> None:
    first = work.enqueue()
    second = work.using(after=first).enqueue()
    assert why(second) == (
        "Job 2 (work) is blocked: it waits for job 1 (work), which is ready. "
        "Wait, or find out about job 1: holdfast explain 1"
    )
    claim()
    assert "waits for job 1 (work), which is running." in why(second)


def test_a_failed_one_holds_it_until_a_retry_of_that_succeeds(app: Holdfast, work: Any, why: Any) -> None:
    first, other = work.enqueue("fail"), work.enqueue()
    second = work.using(after=[other, first]).enqueue()
    drain(app)
    assert why(second) == (
        "Job 3 (work) is blocked: it still waits for job 1 (work), which has failed with INVALID_INPUT:SCHEMA. "
        "It continues when job 1 succeeds. Retry that: holdfast retry 1"
    )
    assert app.jobs.retry(first.id) and app.jobs.complete(first.id)
    assert app.jobs.get(second.id).status == "ready", "what the advice says is so"


def test_a_cancelled_one_holds_it_too(app: Holdfast, work: Any, why: Any) -> None:
    first = work.enqueue()
    second = work.using(after=first).enqueue()
    app.jobs.cancel(first.id)
    assert "waits for job 1 (work), which was cancelled. It continues when" in why(second)
    assert "holdfast retry 1" in why(second)


def test_one_that_is_gone_holds_it_for_ever(work: Any, why: Any, sql: Sql) -> None:
    second = work.using(after=work.enqueue()).enqueue()
    sql("DELETE FROM holdfast_jobs WHERE id = 1")
    assert "waits for chain 1, which was deleted." in why(second)
    assert why(second).endswith("End it by hand: holdfast cancel 2, or holdfast complete 2")


def test_an_external_one_waits_for_somebody(app: Holdfast, work: Any, why: Any) -> None:
    deadline = datetime(2023, 11, 20, 12, tzinfo=UTC)
    first = app.external("approve", timeout_at=deadline)
    second = work.using(after=first).enqueue()
    assert "job 1 (approve), which waits to be settled until 2023-11-20 12:00:00 UTC." in why(second)
    assert why(second).endswith("Settle job 1: holdfast complete 1, or holdfast fail 1 CODE")


def test_those_that_are_blocked_themselves_lead_to_what_stands_behind(app: Holdfast, work: Any, why: Any) -> None:
    root = work.enqueue("fail")
    left, right = work.using(after=root).enqueue(), work.using(after=root).enqueue()
    end = work.using(after=[left, right]).enqueue()
    drain(app)
    assert why(end) == (
        "Job 4 (work) is blocked: it waits for 2 jobs: jobs 2 and 3 (work), which are blocked themselves; indirectly "
        "it waits for job 1 (work), which has failed with INVALID_INPUT:SCHEMA. "
        "It continues when job 1 succeeds. Retry that: holdfast retry 1"
    )


def test_of_many_those_that_need_somebody_come_first(app: Holdfast, work: Any, why: Any) -> None:
    jobs = work.enqueue_many([{}] * 300)
    end = work.using(after=jobs).enqueue()
    app.jobs.cancel(jobs[250])
    text = why(end)
    assert (
        "waits for 300 jobs: job 251 (work), which was cancelled; jobs 1, 2, 3 and 4 (work), which are ready;" in text
    )
    assert " and 295 more." in text and text.endswith("holdfast retry 251")
    assert len(text) < 600


def test_a_longer_chain_is_named_by_the_job_it_has_come_to(app: Holdfast, work: Any, why: Any, claim: Claim) -> None:
    root = work.enqueue("go on")
    end = work.using(after=[root], priority=-1).enqueue()
    app.jobs.cancel(work.using(delay=9).enqueue().id)
    claimed = claim()
    go_on(app, claimed, Then(work))
    assert f"waits for job 4 (work) of chain {root.id}, which is ready." in why(end)


def go_on(app: Holdfast, claimed: Claimed, then: Then) -> None:
    """The chain goes on, and nothing else runs."""
    bound = then.task.using()
    new = bound.new_job(bound.encode(then.arguments, then.named_arguments))
    settled = Settlement(claimed.lease, "succeed", None, app.clock.now(), then=new)
    assert app.store.jobs.settle_and_claim([settled], []).lost == []


@pytest.mark.parametrize("policy", ["hold", "fail", "run"])
def test_what_ended_and_nobody_noticed_yet(work: Any, why: Any, sql: Sql, policy: str) -> None:
    """Somebody ended it by plain SQL: the next worker that looks deals with it."""
    second = work.using(after=work.enqueue(), on_blocker_failure=policy).enqueue()
    status = "succeeded" if policy == "hold" else "failed"
    sql("UPDATE holdfast_jobs SET status = ?, finished_at = created_at WHERE id = 1", (status,))
    assert "is blocked, although its blockers have finished, and no worker is running to update it." in why(second)
    assert why(second).endswith(f"Start one: {START_WORKER}")


def test_one_that_was_blocked_by_hand(app: Holdfast, work: Any, why: Any, sql: Sql) -> None:
    job = work.enqueue()
    sql("UPDATE holdfast_jobs SET status = 'blocked'")
    assert "is blocked, but has no blockers: its row was changed by hand. Release it: " in why(job)
    assert app.jobs.cancel(job.id) and app.jobs.retry(job.id) and job.refresh().status == "ready"


def test_one_that_was_retried_without_what_it_waits_for(app: Holdfast, work: Any, why: Any) -> None:
    first = work.enqueue("fail")
    second = work.using(after=first, on_blocker_failure="fail").enqueue()
    drain(app)
    assert app.jobs.retry(second.id) and app.jobs.get(second.id).status == "blocked"
    assert "is blocked: it waits for job 1 (work), which has failed with INVALID_INPUT:SCHEMA." in why(second)
    assert why(second).endswith("holdfast retry 1")


# --- external ---


def test_an_external_job(app: Holdfast, why: Any, clock: FakeClock) -> None:
    job = app.external("approve-invoice", {"id": 7})
    settle = "Settle it: holdfast complete 1, or holdfast fail 1 CODE"
    assert why(job) == f"Job 1 (approve-invoice) is external: it waits to be settled. {settle}"
    moment = datetime.fromtimestamp(clock.now() / SECOND, UTC) + timedelta(days=3)
    timed = app.external("approve-invoice", timeout_at=moment)
    assert "settled until 2023-11-17 22:13:20 UTC, in 3d, and fails then. Settle it: " in why(timed)
    clock.advance(4 * 86_400)
    assert "was not settled by 2023-11-17 22:13:20 UTC, and no worker is running to fail it." in why(timed)
    resolve(app.store)
    assert why(timed) == (
        "Job 2 (approve-invoice) failed with TIMEOUT:EXTERNAL: it was not settled by 2023-11-17 22:13:20 UTC. "
        "Let it wait again, without a deadline: holdfast retry 2"
    )


# --- running, by others than a worker ---


def test_a_job_that_a_program_of_its_own_has_claimed(work: Any, why: Any, claim: Claim, clock: FakeClock) -> None:
    job = work.enqueue()
    claim(lease=30, worker="my-own")
    assert why(job) == (
        "Job 1 (work) is running: attempt 1 of 3 is held by my-own, and its lease ends in 30s. "
        "Wait until it is settled or its lease ends, or cancel it: holdfast cancel 1"
    )
    clock.advance(31)
    assert "but its lease has expired. Start a worker, which recovers it: " in why(job)


def test_a_message_in_flight(app: Holdfast, why: Any, clock: FakeClock) -> None:
    app.queue("inbox").send(1)
    assert app.queue("inbox").receive(visibility=20) is not None
    assert re.fullmatch(
        r"Message 1 is in flight: attempt 1 of 5 is held by [0-9a-f-]+, and its lease ends in 20s\. "
        r"Wait until it is acknowledged or its lease ends, or cancel it: holdfast cancel 1",
        why(1),
    )
    clock.advance(20)
    assert why(1).endswith("has expired. Receive it again: app.queue('inbox').receive()")


# --- messages that are ready ---


def test_a_ready_message_waits_for_somebody_to_receive_it(app: Holdfast, why: Any) -> None:
    inbox = app.queue("inbox")
    inbox.send_many([1, 2, 3])
    inbox.send(4, priority=9)
    assert why(4) == (
        "Message 4 is ready: it waits for a consumer of queue inbox. Receive it: app.queue('inbox').receive()"
    )
    assert "of queue inbox; 3 messages are ahead of it." in why(3)
    inbox.pause()
    assert "Message 3 is ready, but its queue inbox is paused." in why(3)
    assert why(3).endswith("Resume the queue: holdfast queues resume inbox")


# --- ended ---


def test_attempts_that_are_spent(app: Holdfast, work: Any, why: Any) -> None:
    job = work.using(max_attempts=1).enqueue("raise")
    drain(app)
    assert why(job) == (
        "Job 1 (work) failed: its only attempt ended with DEPENDENCY:SMTP: 503 busy. "
        "Fix the cause, then run it again: holdfast retry 1"
    )
    app.jobs.retry(job.id)
    drain(app)
    assert "failed: the last of its 2 attempts ended with DEPENDENCY:SMTP: 503 busy." in why(job)


def test_a_failure_at_once(app: Holdfast, work: Any, why: Any) -> None:
    job = work.enqueue("fail")
    waiting = work.using(after=job).enqueue()
    drain(app)
    assert "failed in attempt 1 of 3, without a retry, with INVALID_INPUT:SCHEMA: no such field; " in why(job)
    assert "; 1 job waits for it. Fix the cause" in why(job)
    app.jobs.cancel(waiting.id)
    assert "waits for it" not in why(job)


def test_a_failure_by_somebody(app: Holdfast, work: Any, why: Any) -> None:
    job, approval = work.enqueue(), app.external("approve")
    for one in (job, approval):
        app.jobs.fail(one.id, "REJECTED:BUDGET", "too much", actor="kim")
    assert "Job 1 (work) was failed by kim with REJECTED:BUDGET: too much. Fix the cause, then run it" in why(job)
    assert "then let it wait again: holdfast retry 2" in why(approval)


def test_a_last_attempt_that_was_never_settled(
    app: Holdfast, work: Any, why: Any, claim: Claim, clock: FakeClock
) -> None:
    job = work.using(max_attempts=1).enqueue()
    claim(lease=30)
    clock.advance(31)
    recover(app.store)
    assert "failed: its only attempt ended with TIMEOUT:LEASE: attempt 1, the last, was not settled" in why(job)


@pytest.mark.parametrize(("policy", "verb"), [("fail", "failed"), ("cancel", "was cancelled")])
def test_what_ended_because_of_a_blocker_is_retried_with_it(
    app: Holdfast, work: Any, why: Any, policy: str, verb: str
) -> None:
    first = work.enqueue("fail")
    second = work.using(after=first, on_blocker_failure=policy).enqueue()
    drain(app)
    assert why(second) == (
        f"Job 2 (work) {verb}, since the chain 1, which it waited for, failed. "
        "Run it again, with its blockers: holdfast retry 1 2"
    )
    app.jobs.retry(first.id)
    app.jobs.complete(first.id)
    assert why(second).endswith("Run it again: holdfast retry 2")


def test_a_cancellation(app: Holdfast, work: Any, why: Any) -> None:
    by_kim, by_itself = work.enqueue(), work.enqueue("cancel")
    app.jobs.cancel(by_kim.id, reason="sent by hand", actor="kim")
    drain(app)
    assert why(by_kim) == "Job 1 (work) was cancelled by kim: sent by hand. Run it anyway: holdfast retry 1"
    assert "Job 2 (work) was cancelled by its own task: not wanted." in why(by_itself)


def test_a_success(app: Holdfast, work: Any, why: Any) -> None:
    job, chained, approval = work.enqueue(), work.enqueue("go on"), app.external("approve")
    app.jobs.complete(approval.id, actor="kim")
    drain(app)
    nothing = "Nothing needs to be done."
    assert why(job) == f"Job 1 (work) succeeded at 2023-11-14 22:13:20 UTC, in attempt 1 of 3. {nothing}"
    assert "in attempt 1 of 3; its chain continues with job 4 (work), which has succeeded. Nothing needs" in why(
        chained
    )
    assert why(approval) == f"Job 3 (approve) was completed by kim at 2023-11-14 22:13:20 UTC. {nothing}"
    app.queue("inbox").send(1)
    message = app.queue("inbox").receive()
    assert message is not None and message.ack()
    assert "was acknowledged at 2023-11-14 22:13:20 UTC, in attempt 1 of 5." in why(message.id)


def test_a_chain_that_has_not_ended_is_pointed_to(app: Holdfast, work: Any, why: Any, claim: Claim) -> None:
    work.enqueue()
    go_on(app, claim(), Then(work))
    assert "its chain continues with job 2 (work), which is ready. Find out about that: holdfast explain 2" in why(1)


# --- what is stored may come from anyone ---


def test_a_sentence_has_nothing_that_acts(app: Holdfast, why: Any, sql: Sql) -> None:
    evil = "\x1b[2J; rm -rf ~ '\n" + "x" * 500
    sql("INSERT INTO holdfast_jobs (task, queue) VALUES (?, ?)", (evil, evil))
    app.store.jobs.operate("pause", Criteria(queue=(evil,)), "kim")
    text = why(1)
    assert text.isprintable() and len(text) < 1200
    assert "holdfast queues resume '\\x1b[2J; rm -rf ~ '" in text, "the shell takes it as one word"
    sql("UPDATE holdfast_jobs SET status = 'failed', error_code = ?, error_detail = ?", (evil, evil))
    assert why(1).isprintable()
