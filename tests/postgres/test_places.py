"""Claims from remembered places: while a backlog lasts, a worker does not search the index from its start."""

import re
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.model.job import Claimed, ClaimRequest, Lease, Settlement
from holdfast.store.postgres import places
from holdfast.store.postgres.dialect import Handle
from support.postgres_backend import PostgresBackend

LEASE = 60_000_000
NEVER = 1e9


class Pool:
    """A pool of a worker that claims so many jobs at a time."""

    def __init__(self, app: Holdfast, limit: int, **options: Any) -> None:
        self._app, self._limit, self._options = app, limit, options
        self._tasks = {"work", "other"}

    def claim(self) -> list[Claimed]:
        request = ClaimRequest(self._tasks, self._limit, LEASE, "me", **self._options)
        return self._app.store.jobs.settle_and_claim([], [request]).claimed

    def ids(self) -> list[int]:
        return [one.id for one in self.claim()]


@pytest.fixture
def app(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    monkeypatch.setattr(places, "LOOK_SECONDS", NEVER)
    app = backend.open()
    app.task(work)
    app.task(other)
    return app


def work() -> None: ...


def other() -> None: ...


def enqueue(app: Holdfast, count: int, name: str = "work", **options: Any) -> list[int]:
    return app.tasks[name].using(**options).enqueue_many([{}] * count)


def give_back(app: Holdfast, job_id: int) -> None:
    lease = Lease(job_id, app.jobs.get(job_id).attempt)
    app.store.jobs.settle_and_claim([Settlement(lease, "give_back", None, 0)], [])


def test_claims_go_on_where_the_last_one_ended(app: Holdfast) -> None:
    ids, pool = enqueue(app, 30), Pool(app, 5)
    assert [pool.ids() for _ in range(6)] == [ids[at : at + 5] for at in range(0, 30, 5)]
    assert pool.ids() == []


def test_what_comes_back_is_found_by_the_next_look(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, pool = enqueue(app, 30), Pool(app, 5)
    assert pool.ids() + pool.ids() == ids[:10]  # the second claim finds the places
    give_back(app, ids[0])
    assert pool.ids() == ids[10:15]
    monkeypatch.setattr(places, "LOOK_SECONDS", 0)
    assert pool.ids() == [ids[0], *ids[15:19]]


def test_what_comes_back_is_found_at_the_end_of_the_backlog_at_once(app: Holdfast) -> None:
    ids, pool = enqueue(app, 12), Pool(app, 5)
    assert pool.ids() + pool.ids() == ids[:10]
    give_back(app, ids[0])
    assert pool.ids() == [*ids[10:12], ids[0]]


def test_what_commits_late_is_found_by_the_next_look(
    app: Holdfast, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend.connect() as late:
        early = app.tasks["work"].using(conn=late).enqueue()
        ids, pool = enqueue(app, 30), Pool(app, 5)
        assert pool.ids() + pool.ids() == ids[:10]
    assert pool.ids() == ids[10:15]
    monkeypatch.setattr(places, "LOOK_SECONDS", 0)
    assert pool.ids() == [early.id, *ids[15:19]]


@pytest.fixture
def resting(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """Looks take long, and are rare."""
    for name, value in (("COSTLY_SECONDS", -1.0), ("MANY_CLAIMS", 0), ("REST_FACTOR", NEVER)):
        monkeypatch.setattr(places, name, value)
    monkeypatch.setattr(places, "MAX_REST_SECONDS", NEVER)
    return app


def test_after_a_look_that_took_long_what_comes_back_is_found_when_its_rest_is_over(resting: Holdfast) -> None:
    ids, pool = enqueue(resting, 12), Pool(resting, 5)
    assert pool.ids() + pool.ids() == ids[:10]
    give_back(resting, ids[0])
    assert pool.ids() == ids[10:], "there is no look, although this is the end of what it knows"
    (backlog,) = resting.store.parts.planner._backlogs.values()  # type: ignore[attr-defined]
    backlog.rests_until = 1.0
    assert pool.ids() == [ids[0]]


def test_while_looks_are_rare_new_jobs_of_known_places_are_found_at_once(resting: Holdfast) -> None:
    ids, pool = enqueue(resting, 12), Pool(resting, 5)
    assert pool.ids() + pool.ids() + pool.ids() == ids
    assert pool.ids() == []
    for _ in range(3):
        more = enqueue(resting, 3)
        assert pool.ids() == more
        assert pool.ids() == []


def test_while_looks_are_rare_a_queue_that_is_resumed_is_served_at_once(resting: Holdfast) -> None:
    ids, pool = enqueue(resting, 30), Pool(resting, 5)
    assert pool.ids() + pool.ids() == ids[:10]
    resting.queue("default").pause()
    (backlog,) = resting.store.parts.planner._backlogs.values()  # type: ignore[attr-defined]
    backlog.rests_until = 1.0
    assert pool.ids() == [], "this is a look, and the queue is paused"
    resting.queue("default").resume()
    assert pool.ids() == ids[10:15]


def test_a_higher_priority_that_is_known_comes_first_at_once(app: Holdfast) -> None:
    low, high, pool = enqueue(app, 30), enqueue(app, 12, priority=9), Pool(app, 5)
    assert pool.ids() + pool.ids() == high[:10]
    assert pool.ids() == [*high[10:], *low[:3]]
    more = enqueue(app, 2, priority=9)
    assert pool.ids() == [*more, *low[3:6]]


def test_priorities_are_kept_across_tasks_and_queues(app: Holdfast) -> None:
    groups = [
        enqueue(app, 8, name, priority=priority, queue=queue)
        for priority in (0, 5)
        for name in ("work", "other")
        for queue in ("left", "right")
    ]
    pool, order = Pool(app, 4), []
    for _ in range(16):
        order += pool.ids()
    assert order[:32] == sorted(id for group in groups[4:] for id in group)
    assert order[32:] == sorted(id for group in groups[:4] for id in group)


def test_queues_are_served_in_their_order_and_paused_ones_not(app: Holdfast) -> None:
    first, second = enqueue(app, 8, queue="first"), enqueue(app, 20, queue="second")
    pool = Pool(app, 4, queues=[("second", 100), ("first", 100)])
    assert pool.ids() + pool.ids() == second[:8]
    app.queue("second").pause()
    assert pool.ids() == first[:4]
    app.queue("second").resume()


def test_many_priorities_are_claimed_in_order_without_places(app: Holdfast) -> None:
    ids = [enqueue(app, 1, priority=number)[0] for number in range(places.MAX_PLACES + 10)]
    pool, order = Pool(app, 5), []
    while found := pool.ids():
        order += found
    assert order == ids[::-1]


def test_a_claim_beside_a_held_snapshot_reads_no_dead_entries(app: Holdfast, backend: PostgresBackend) -> None:
    """A snapshot keeps the entries of all claims since in the index."""
    enqueue(app, 3000)
    pool = Pool(app, 100)
    with backend.connect() as holder, backend.connect() as watcher:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1 FROM holdfast_jobs LIMIT 1")
        for _ in range(25):
            assert len(pool.claim()) == 100
        (place,) = app.store.parts.planner._backlogs.popitem()[1].places  # type: ignore[attr-defined]
        database = app.store.database  # type: ignore[attr-defined]

        def pages(after: int) -> int:
            values = {"worker": "w", "lease": 1, "now": 1, "queue": "default", "task": "work", "priority": 0}
            values |= {"limit": 1, "after": after}
            plan = Handle(watcher, is_own=False).execute(
                f"EXPLAIN (ANALYZE, BUFFERS) {database.sql.claim_place}", values
            )
            found = re.search(
                r"CTE taken.*?shared hit=(\d+)", "\n".join(row[0] for row in plan.fetchall()), re.DOTALL
            )
            watcher.rollback()
            assert found is not None
            return int(found[1])

        assert pages(place.after) * 10 < pages(0)
