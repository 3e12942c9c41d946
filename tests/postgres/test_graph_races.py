"""Graphs of jobs, changed by two transactions at the same time: each end is noticed exactly once, in either order.

The first transaction has done its part and is open. The second does its part until it waits for a lock, or has
committed. Then the first commits.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BatchEnded, TransactionError
from holdfast.model.job import ClaimRequest, Lease, NewJob, Settlement
from support.postgres_backend import PostgresBackend
from support.running_worker import eventually

LEASE = 60_000_000
Part = Callable[[Any], object]
WAITING = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"""


class Race:
    """Two changes at the same time."""

    def __init__(self, backend: PostgresBackend) -> None:
        self.backend, self.app = backend, backend.open()
        app = self.app

        @app.task
        def step() -> None: ...

        @app.task
        def finish() -> None: ...

        self.step, self.finish = step, finish
        self.waited = 0  # how often the second change has waited for the first

    def claim(self) -> dict[int, Lease]:
        request = ClaimRequest({"step"}, 100, LEASE, "me")
        return {one.id: one.lease for one in self.app.store.jobs.settle_and_claim([], [request]).claimed}

    def succeeds(self, lease: Lease, then: NewJob | None = None) -> Part:
        now = self.app.store.clock.now()
        one = Settlement(lease, "succeed", now, now, then=then)
        return lambda transaction: self.app.store.jobs.settle(one, transaction)

    def run(self, first: Part, second: Part, *, commit: bool = True) -> BaseException | None:
        """Return what the second has raised."""
        ended, raised = threading.Event(), list[BaseException]()

        def run_second() -> None:
            try:
                with self.app.store.transaction() as transaction:
                    second(transaction)
            except BaseException as error:  # noqa: BLE001  given to the test
                raised.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=run_second)
        try:
            with self.app.store.transaction() as transaction:
                first(transaction)
                thread.start()
                eventually(lambda: ended.is_set() or self.backend.sql(WAITING))
                self.waited += not ended.is_set()
                if not commit:
                    raise KeyError
        except KeyError:
            pass
        thread.join()
        self.app.store.jobs.sweep()  # as the next claim of a worker does
        return raised[0] if raised else None

    def events(self, job_id: int, name: str) -> int:
        return self.backend.sql("SELECT event FROM holdfast_events WHERE job_id = ?", (job_id,)).count((name,))


@pytest.fixture
def race(backend: PostgresBackend) -> Race:
    return Race(backend)


both_orders = pytest.mark.parametrize("swapped", [False, True], ids=["one first", "other first"])


def in_order(swapped: bool, one: Part, other: Part) -> tuple[Part, Part]:
    return (other, one) if swapped else (one, other)


@both_orders
def test_two_blockers_that_end_at_once_unblock_a_job_once(race: Race, swapped: bool) -> None:
    left, right = race.step.enqueue(), race.step.enqueue()
    waiting = race.step.using(after=[left, right]).enqueue()
    leases = race.claim()
    race.run(*in_order(swapped, race.succeeds(leases[left.id]), race.succeeds(leases[right.id])))
    assert race.waited == 1
    assert (waiting.refresh().status, race.events(waiting.id, "unblocked")) == ("ready", 1)


@both_orders
def test_two_last_members_end_a_batch_once(race: Race, swapped: bool) -> None:
    with race.app.batch(on_done=race.finish, on_success=race.finish) as batch:
        left, right = (race.step.using(batch=batch).enqueue() for _ in range(2))
    leases = race.claim()
    race.run(*in_order(swapped, race.succeeds(leases[left.id]), race.succeeds(leases[right.id])))
    assert race.waited == 1
    assert batch.progress().is_done and race.app.jobs.count(task="finish") == 2


@both_orders
@pytest.mark.parametrize("continued", [False, True], ids=["a job", "a chain"])
@pytest.mark.parametrize("awaited", [False, True], ids=["the first to wait", "the second to wait"])
def test_a_job_that_is_enqueued_while_its_blocker_ends_does_not_wait_for_ever(
    race: Race, swapped: bool, continued: bool, awaited: bool
) -> None:
    blocker = race.step.enqueue()
    if awaited:
        race.step.using(after=[blocker]).enqueue()
    leases = race.claim()
    if continued:
        race.app.store.jobs.settle(
            Settlement(leases[blocker.id], "succeed", 0, 0, then=NewJob(queue="default", task="step", args="{}"))
        )
        leases = race.claim()
    (lease,) = leases.values()

    def add(transaction: Any) -> None:
        race.step.using(after=[blocker], conn=transaction, tags=["waiting"]).enqueue()

    race.run(*in_order(swapped, race.succeeds(lease), add))
    assert race.waited == 1
    (waiting,) = race.app.jobs.list(tag="waiting")
    assert (waiting.status, race.events(waiting.id, "unblocked")) == ("ready", 1)


@both_orders
def test_a_job_that_is_enqueued_while_its_blocker_continues_waits_for_the_continuation(
    race: Race, swapped: bool
) -> None:
    blocker = race.step.enqueue()
    (lease,) = race.claim().values()

    def add(transaction: Any) -> None:
        race.step.using(after=[blocker], conn=transaction, tags=["waiting"]).enqueue()

    race.run(*in_order(swapped, race.succeeds(lease, NewJob(queue="default", task="step", args="{}")), add))
    assert race.waited == 1
    (waiting,) = race.app.jobs.list(tag="waiting")
    assert waiting.status == "blocked"
    (last,) = race.claim().values()
    race.app.store.jobs.settle(Settlement(last, "succeed", 0, 0))
    assert (waiting.refresh().status, race.events(waiting.id, "unblocked")) == ("ready", 1)


def test_a_member_that_is_added_while_the_batch_ends_keeps_it_open(race: Race) -> None:
    with race.app.batch(on_done=race.finish) as batch:
        last = race.step.using(batch=batch).enqueue()
    lease = race.claim()[last.id]
    assert race.run(lambda tx: race.step.using(batch=batch, conn=tx).enqueue(), race.succeeds(lease)) is None
    assert not batch.progress().is_done and race.app.jobs.count(task="finish") == 0
    ((_, lease),) = race.claim().items()
    race.app.store.jobs.settle(Settlement(lease, "succeed", 0, 0))
    assert batch.progress().is_done and race.app.jobs.count(task="finish") == 1


def test_a_member_that_was_to_be_added_and_is_not_lets_the_batch_end(race: Race) -> None:
    with race.app.batch(on_done=race.finish) as batch:
        last = race.step.using(batch=batch).enqueue()
    lease = race.claim()[last.id]
    add = lambda tx: race.step.using(batch=batch, conn=tx).enqueue()  # noqa: E731
    assert race.run(add, race.succeeds(lease), commit=False) is None
    assert batch.progress().is_done and race.app.jobs.count(task="finish") == 1


def test_a_member_for_a_batch_that_ends_is_refused(race: Race) -> None:
    with race.app.batch(on_done=race.finish) as batch:
        last = race.step.using(batch=batch).enqueue()
    lease = race.claim()[last.id]
    raised = race.run(race.succeeds(lease), lambda tx: race.step.using(batch=batch, conn=tx).enqueue())
    assert isinstance(raised, BatchEnded) and race.waited == 1
    assert batch.progress().is_done and race.app.jobs.count(task="finish") == 1


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_end_in_a_transaction_that_sees_no_commits_is_resolved_by_the_next_claim(
    race: Race, backend: PostgresBackend, isolation: str
) -> None:
    left, right = race.step.enqueue(), race.step.enqueue()
    waiting = race.step.using(after=[left, right]).enqueue()
    leases = race.claim()
    with backend.connect() as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        connection.execute("SELECT 1 FROM holdfast_jobs LIMIT 1")
        race.app.store.jobs.settle(Settlement(leases[left.id], "succeed", 0, 0))
        with race.app.store.transaction(conn=connection) as transaction:
            race.succeeds(leases[right.id])(transaction)
    assert waiting.refresh().status == "blocked"
    assert waiting.id in race.claim() and race.events(waiting.id, "unblocked") == 1


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_key_that_was_taken_meanwhile_says_to_do_the_transaction_again(
    race: Race, backend: PostgresBackend, isolation: str
) -> None:
    with backend.connect() as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        connection.execute("SELECT 1 FROM holdfast_jobs LIMIT 1")
        first = race.step.using(key="one").enqueue()
        with pytest.raises(TransactionError, match="roll it back, and do it again"):
            race.step.using(key="one", conn=connection).enqueue()
        connection.rollback()
        assert race.step.using(key="one", conn=connection).enqueue().id == first.id
        race.step.using(conn=connection).enqueue()
    assert race.app.jobs.count(task="step") == 2
