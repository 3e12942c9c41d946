"""The Store protocol: one method per transition, each fenced, each seen by the next claim."""

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.failure import Failure
from holdfast.model.job import Claimed, Criteria, Cursor, JobRecord, Lease, NewJob
from holdfast.store import protocol
from holdfast.store.protocol import Store
from holdfast.testing import FakeClock
from support.running_worker import PATIENCE_SECONDS
from support.transitions import claim_tasks, extend, fail, promote, recover, release, retry, snooze, stop, succeed


@pytest.fixture
def store(app: Holdfast) -> Store:
    return app.store


def put(store: Store, task: str | None = "work", **how: Any) -> int:
    return store.jobs.insert(
        NewJob(queue=how.pop("queue", "default"), task=task, args=how.pop("args", "{}"), **how)
    ).id


def take(
    store: Store, limit: int = 10, tasks: Sequence[str] = ("work",), queues: Any = None, lease: int = 30 * SECOND
) -> list[Claimed]:
    return claim_tasks(store, queues, tasks, limit, lease, "worker-1")


def record(store: Store, id: int) -> JobRecord:
    found = store.jobs.get(id)
    assert found is not None
    return found


FAILURE = Failure("DEPENDENCY:SMTP", "refused")


# --- claiming ---


def test_a_claim_takes_the_tasks_that_are_named_and_no_others(store: Store) -> None:
    ids = {name: put(store, name) for name in ("a", "b", "c")}
    assert [one.id for one in take(store, tasks=["a", "c"])] == [ids["a"], ids["c"]]
    assert record(store, ids["b"]).status == "ready"


def test_a_claim_of_no_tasks_takes_none(store: Store) -> None:
    put(store)
    assert take(store, tasks=[]) == []


def test_a_claim_takes_from_the_queues_that_are_named_and_no_others(store: Store) -> None:
    ids = {name: put(store, queue=name) for name in ("x", "y", "z")}
    assert [one.id for one in take(store, queues=["x", "z"])] == [ids["x"], ids["z"]]


def test_a_claim_without_queues_takes_from_all(store: Store) -> None:
    ids = [put(store, queue=name) for name in ("x", "y", "z")]
    assert [one.id for one in take(store)] == ids


def test_a_claim_goes_by_priority_and_then_by_order_across_queues_and_tasks(store: Store) -> None:
    low = put(store, "a", queue="x", priority=-1)
    first = put(store, "b", queue="y")
    second = put(store, "a", queue="x")
    high = put(store, "b", queue="x", priority=1)
    claimed = [take(store, 1, ["a", "b"])[0].id for _ in range(4)]
    assert claimed == [high, first, second, low]


def test_a_claim_from_named_queues_goes_queue_by_queue(store: Store) -> None:
    low = put(store, "a", queue="x", priority=-1)
    urgent = put(store, "b", queue="y", priority=9)
    high = put(store, "a", queue="x", priority=1)
    assert [one.id for one in take(store, 5, ["a", "b"], ["x", "y"])] == [high, low, urgent]


def test_a_claim_returns_its_jobs_in_that_order_too(store: Store) -> None:
    ids = [put(store, priority=priority) for priority in (0, 5, -5, 5)]
    assert [one.id for one in take(store)] == [ids[1], ids[3], ids[0], ids[2]]


def test_a_claim_takes_no_more_than_its_limit(store: Store) -> None:
    ids = [put(store) for _ in range(5)]
    assert [one.id for one in take(store, 2)] == ids[:2]


def test_a_claim_tells_all_that_a_worker_needs(store: Store, clock: FakeClock) -> None:
    id = put(store, queue="mail", args='{"to":"ada"}', max_attempts=7, timeout=9 * SECOND)
    (claimed,) = take(store)
    assert claimed == Claimed(id, 1, 7, "mail", "work", b'{"to":"ada"}', 9 * SECOND, 1, run_at=clock.now())
    assert claimed.lease == Lease(id, 1)


def test_a_claim_counts_the_attempt_and_names_the_worker(store: Store, clock: FakeClock) -> None:
    id = put(store)
    clock.advance(5)
    take(store)
    row = record(store, id)
    assert (row.status, row.attempt, row.worker, row.claimed_at) == ("running", 1, "worker-1", clock.now())


def test_a_claimed_job_is_not_claimed_again(store: Store) -> None:
    put(store)
    take(store)
    assert take(store) == []


def test_a_message_claim_takes_no_task_and_a_task_claim_no_message(store: Store) -> None:
    task, message = put(store), put(store, None)
    assert [one.id for one in store.jobs.claim_messages("default", 10, SECOND, "w")] == [message]
    assert [one.id for one in take(store)] == [task]


# --- settling ---


def test_succeed_keeps_the_result(store: Store, clock: FakeClock) -> None:
    id = put(store)
    (claimed,) = take(store)
    clock.advance(3)
    assert succeed(store, claimed.lease, '{"sent":true}') is True
    row = record(store, id)
    assert (row.status, row.result, row.finished_at) == ("succeeded", b'{"sent":true}', clock.now())


def test_retry_waits_and_keeps_the_error(store: Store, clock: FakeClock) -> None:
    id = put(store)
    assert retry(store, take(store)[0].lease, 10 * SECOND, FAILURE) is True
    row = record(store, id)
    assert (row.status, row.run_at, row.worker) == ("scheduled", clock.now() + 10 * SECOND, None)
    assert (row.error_code, row.error_detail, row.finished_at) == ("DEPENDENCY:SMTP", "refused", None)
    assert take(store) == []
    clock.advance(10)
    assert [one.attempt for one in take(store)] == [2]


def test_retry_without_delay_is_ready_at_once(store: Store) -> None:
    put(store)
    retry(store, take(store)[0].lease, 0, FAILURE)
    assert [one.attempt for one in take(store)] == [2]


def test_retry_after_the_last_attempt_fails(store: Store, clock: FakeClock) -> None:
    id = put(store, max_attempts=1)
    assert retry(store, take(store)[0].lease, 10 * SECOND, FAILURE) is True
    row = record(store, id)
    assert (row.status, row.error_code, row.finished_at) == ("failed", "DEPENDENCY:SMTP", clock.now())


def test_fail_is_final_however_many_attempts_are_left(store: Store, clock: FakeClock) -> None:
    id = put(store, max_attempts=9)
    assert fail(store, take(store)[0].lease, FAILURE) is True
    clock.advance(10**6)
    assert take(store) == []
    assert record(store, id).status == "failed"


def test_stop_cancels_with_its_reason(store: Store) -> None:
    id = put(store)
    assert stop(store, take(store)[0].lease, "no longer wanted") is True
    row = record(store, id)
    assert (row.status, row.error_detail) == ("cancelled", "no longer wanted")


def test_snooze_comes_back_and_does_not_use_up_an_attempt(store: Store, clock: FakeClock) -> None:
    id = put(store, max_attempts=2)
    for _ in range(5):
        assert snooze(store, take(store)[0].lease, 10 * SECOND) is True
        assert take(store) == []
        clock.advance(10)
    row = record(store, id)
    assert row.max_attempts - row.attempt == 2
    assert record(store, id).status != "failed"


def test_release_gives_the_job_back_and_the_attempt_counts(store: Store) -> None:
    put(store, max_attempts=2)
    assert release(store, take(store)[0].lease, 0) is True
    (second,) = take(store)
    assert second.attempt == 2
    assert release(store, second.lease, 0) is True
    assert record(store, second.id).status == "failed"


def test_extend_moves_the_end_of_the_lease(store: Store, clock: FakeClock) -> None:
    put(store)
    (claimed,) = take(store, lease=10 * SECOND)
    clock.advance(9)
    assert extend(store, claimed.lease, 10 * SECOND) is True
    clock.advance(9)
    assert recover(store) == 0
    clock.advance(1)
    assert recover(store) == 1


# --- by the clock ---


def test_promote_makes_ready_all_that_is_due(store: Store, clock: FakeClock) -> None:
    ids = [put(store, delay=delay * SECOND) for delay in (10, 20, 30)]
    clock.advance(20)
    assert promote(store) == 2
    assert [record(store, id).status for id in ids] == ["ready", "ready", "scheduled"]


def test_promote_reaches_thousands(store: Store, clock: FakeClock) -> None:
    store.jobs.insert_many(NewJob(queue="q", task="work", args="", delay=SECOND), ["{}"] * 1300)
    clock.advance(1)
    assert promote(store) == 1300


def test_recover_gives_back_what_has_attempts_left_and_fails_the_rest(store: Store, clock: FakeClock) -> None:
    kept, spent, held = put(store), put(store, max_attempts=1), put(store)
    take(store, 2, lease=10 * SECOND)
    take(store, 1, lease=99 * SECOND)
    clock.advance(10)
    assert recover(store) == 2
    assert [record(store, id).status for id in (kept, spent, held)] == ["ready", "failed", "running"]
    assert record(store, spent).error_code == "TIMEOUT:LEASE"


def test_recover_reaches_thousands(store: Store) -> None:
    store.jobs.insert_many(NewJob(queue="q", task="work", args=""), ["{}"] * 1300)
    take(store, 1300, lease=0)
    assert recover(store) == 1300


def test_a_recovered_job_has_neither_worker_nor_lease_of_the_dead(store: Store) -> None:
    id = put(store)
    take(store, lease=0)
    recover(store)
    assert record(store, id).worker is None


# --- reading ---


def test_get_of_no_job_is_none(store: Store) -> None:
    assert store.jobs.get(1) is None


def test_list_is_newest_first_on_either_side_of_a_cursor(store: Store) -> None:
    ids = [put(store) for _ in range(6)]
    older = store.jobs.list(Criteria(), 2, Cursor(ids[3]))
    newer = store.jobs.list(Criteria(), 2, Cursor(ids[2], newer=True))
    assert [row.id for row in older.records] == [ids[2], ids[1]]
    assert [row.id for row in newer.records] == [ids[4], ids[3]]


def test_inserted_tells_the_record_without_reading_it(store: Store) -> None:
    job = NewJob(queue="q", task="work", args='{"a":1}', delay=SECOND, priority=2, timeout=5, tags='["t"]')
    inserted = store.jobs.insert(job)
    assert inserted.record(job) == store.jobs.get(inserted.id)


def test_many_are_inserted_with_ids_in_order(store: Store) -> None:
    ids = store.jobs.insert_many(NewJob(queue="q", task="work", args=""), (f'{{"n":{n}}}' for n in range(2100)))
    rows = [record(store, id) for id in (ids[0], ids[999], ids[1000], ids[2099])]
    assert [row.args for row in rows] == [b'{"n":0}', b'{"n":999}', b'{"n":1000}', b'{"n":2099}']


def test_a_commit_counts_as_news(no_polling: None, store: Store) -> None:
    """What was committed between the look and the wait ends the wait at once."""
    store.wait_for_commit(store.commits_seen(), 0.01)  # the first wait starts the watcher
    seen = store.commits_seen()
    put(store)
    waiting = threading.Thread(target=store.wait_for_commit, args=(seen, 10 * PATIENCE_SECONDS), daemon=True)
    waiting.start()
    waiting.join(PATIENCE_SECONDS)
    assert not waiting.is_alive()


def test_close_can_be_called_twice(store: Store) -> None:
    store.close()
    store.close()


PARTS = {
    "jobs": protocol.JobStore,
    "workers": protocol.WorkerStore,
    "workflows": protocol.WorkflowStore,
    "schedules": protocol.ScheduleStore,
    "statistics": protocol.StatisticsStore,
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_store_has_the_methods_of_its_protocol_and_no_others(store: Store, part: str) -> None:
    offered = {name for name in dir(getattr(store, part)) if not name.startswith("_")}
    assert offered == {name for name in vars(PARTS[part]) if not name.startswith("_")}


def test_the_protocols_stay_small() -> None:
    """A new store implements each of these. Pruning and waiting are shared classes, and not among them."""
    kinds = [Store, *PARTS.values()]
    methods = [
        name for kind in kinds for name, one in vars(kind).items() if inspect.isfunction(one) and name[0] != "_"
    ]
    assert len(methods) <= 60


def test_a_store_of_another_app_sees_the_same_jobs(
    store: Store, open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    id = put(store)
    other = open_app(clock=clock).store
    assert other.jobs.get(id) == store.jobs.get(id)
    assert [one.id for one in take(other)] == [id]
    assert take(store) == []
