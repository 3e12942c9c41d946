"""For all filters and access paths, a listing has every matching job once, in order, and no other."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app.jobs import page_of
from holdfast.model.job import Counted, Criteria
from holdfast.store import listing, listing_plan, statistics
from holdfast.store.listing_plan import AccessPath, UnionScan
from support.effort import a_part
from support.random_jobs import deletable, fill, fitting, read, some_criteria

# With some hundred jobs the usual bounds are never reached. With these, one way or another is taken.
BOUNDS: dict[str, dict[str, int]] = {
    "as they are": {},
    "by small parts": {"SHORT_SCAN": 1, "SMALL": 100},
    "by ranges": {"SHORT_SCAN": 1, "SMALL": 3, "MAX_SORTED": 5, "MAX_LOOKUPS": 20, "LONG_SCAN": 30},
    "by sorting": {"SHORT_SCAN": 1, "SMALL": 3, "MAX_SORTED": 100, "MAX_RANGES": 2, "MAX_LOOKUPS": 20},
    "by counts": {"SHORT_SCAN": 1, "SMALL": 1, "MAX_SORTED": 1, "MAX_RANGES": 1, "LONG_SCAN": 7, "MAX_LOOKUPS": 9},
    "by id": {"SHORT_SCAN": 1, "SMALL": 0, "MAX_SORTED": 0, "MAX_RANGES": 0, "LONG_SCAN": 25, "MAX_UNFOLDED": -1},
    "by zones": {"ZONE_IDS": 16, "MAX_PARTS": 3, "SHORT_SCAN": 1, "SMALL": 3, "MAX_SORTED": 60, "LONG_SCAN": 30},
    "by many zones": {"ZONE_IDS": 4, "MAX_PARTS": 500, "SHORT_SCAN": 1, "SMALL": 3, "MAX_SORTED": 60, "STEP": 10},
    "by counts and zones": {
        "ZONE_IDS": 16,
        "MAX_PARTS": 9,
        "SHORT_SCAN": 1,
        "SMALL": 1,
        "MAX_SORTED": 60,
        "MAX_RANGES": 1,
        "LONG_SCAN": 7,
    },
    "in short steps": {"STEP": 10, "LONG_SCAN": 17, "SMALL": 2, "MAX_SORTED_IN_STEPS": 20, "MAX_RANGES": 4},
}
SEEDS = range(a_part(2, 40))


@pytest.fixture(params=BOUNDS)
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    set_bounds(monkeypatch, request.param)


def set_bounds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for bound, value in BOUNDS[name].items():
        for module in (listing, listing_plan, statistics):
            if hasattr(module, bound):
                monkeypatch.setattr(module, bound, value)


@pytest.fixture(params=SEEDS)
def crowd(request: pytest.FixtureRequest, bounds: None, app: Holdfast, url: str) -> Random:
    random = Random(request.param)
    fill(url, random)
    if request.param % 2:
        app.store.statistics.fold()
    return random


def pages(app: Holdfast, criteria: Criteria, limit: int, cursor: str | None, backwards: bool = False) -> list[int]:
    """The ids of all pages from there on, in the order of a listing."""
    found: list[int] = []
    for _ in range(2000):
        page = page_of(app.store, criteria, limit, cursor)
        ids = [record.id for record in page]
        assert len(ids) <= limit
        found = [*ids, *found] if backwards else [*found, *ids]
        cursor = page.previous if backwards else page.next
        if cursor is None:
            assert page.scanned is None
            return found
    raise AssertionError("the pages never end")


def test_pages_have_every_matching_job_once(app: Holdfast, url: str, crowd: Random) -> None:
    rows = read(url)
    for _ in range(a_part(20, 200)):
        criteria = some_criteria(crowd, rows)
        expected, limit = fitting(rows, criteria), crowd.choice([1, 5, 20, 1000])
        assert pages(app, criteria, limit, None) == expected, criteria
        assert pages(app, criteria, limit, "newer-0", backwards=True) == expected, criteria
        middle = crowd.choice(rows)["id"]
        older, newer = ([id for id in expected if id < middle], [id for id in expected if id > middle])
        assert pages(app, criteria, limit, f"older-{middle}") == older, criteria
        assert pages(app, criteria, limit, f"newer-{middle}", backwards=True) == newer, criteria


def test_a_stopped_search_can_be_paged_backwards(app: Holdfast, url: str, crowd: Random) -> None:
    rows = read(url)
    for _ in range(a_part(20, 200)):
        criteria = some_criteria(crowd, rows)
        expected = fitting(rows, criteria)
        page = page_of(app.store, criteria, 5, None)
        seen = [record.id for record in page]
        while page.next is not None and crowd.random() < 0.8:
            page = page_of(app.store, criteria, 5, page.next)
            seen += [record.id for record in page]
        back = pages(app, criteria, 5, page.previous, backwards=True) if page.previous is not None else []
        assert [*back, *(record.id for record in page)] == seen == expected[: len(seen)], criteria


def test_counts_equal_the_number_of_matching_jobs(app: Holdfast, url: str, crowd: Random) -> None:
    rows = read(url)
    with closing(sqlite3.connect(url)) as connection:
        edges = connection.execute("SELECT job_id, chain_id FROM holdfast_blockers").fetchall()
    for _ in range(a_part(20, 200)):
        criteria = some_criteria(crowd, rows)
        expected = len(fitting(rows, criteria))
        assert app.store.jobs.count(criteria) == Counted(expected), criteria
        some = app.store.jobs.count(criteria, max_scanned=1)
        assert some.count == expected if some.is_complete else some.count <= expected
        if not criteria.chain_status:
            assert app.store.jobs.count(criteria, deletable=True) == Counted(deletable(rows, edges, criteria)), (
                criteria
            )


def test_an_action_reaches_every_matching_job(app: Holdfast, url: str, crowd: Random) -> None:
    rows = read(url)
    criteria = some_criteria(crowd, rows)
    expected = set(fitting(rows, criteria))
    assert app.store.jobs.operate("purge", criteria, "test") == len(expected)
    assert {row["id"] for row in read(url)} == {row["id"] for row in rows} - expected


def test_a_deletion_deletes_as_many_as_were_counted(app: Holdfast, url: str, crowd: Random) -> None:
    rows = read(url)
    criteria = some_criteria(crowd, rows)
    while criteria.chain_status:
        criteria = some_criteria(crowd, rows)
    counted = app.store.jobs.count(criteria, deletable=True)
    assert app.store.jobs.operate("delete", criteria, "test") == counted.count, criteria
    assert len(read(url)) == len(rows) - counted.count


EXPECTED = {
    "by small parts": {"path SortedScan", "path RangeScan", "path GivenIds"},
    "by ranges": {"path RangeScan", "path ChainRootScan", "path NoneType"},
    "by sorting": {"path SortedScan", "path NoneType"},
    "by counts": {"path_by_counts RangeScan", "path_by_counts NoneType"},
    "by id": {"path NoneType", "path_by_counts NoneType"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_set_of_bounds_takes_its_access_paths(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    set_bounds(monkeypatch, name)
    taken = set[str]()
    for method in ("path", "path_by_counts"):
        _watch(monkeypatch, method, taken)
    random = Random(1)
    fill(url, random)
    app.store.statistics.fold()
    rows = read(url)
    for _ in range(100):
        page_of(app.store, some_criteria(random, rows), 5, None)
    assert taken >= EXPECTED[name]


def _watch(monkeypatch: pytest.MonkeyPatch, method: str, taken: set[str]) -> None:
    original = getattr(listing_plan.ListPlanner, method)

    def watched(self: listing_plan.ListPlanner, *args: Any) -> AccessPath | None:
        path: AccessPath | None = original(self, *args)
        parts = path._paths if isinstance(path, UnionScan) else [path]
        taken.update(f"{method} {type(part).__name__}" for part in parts)
        return path

    monkeypatch.setattr(listing_plan.ListPlanner, method, watched)


def test_jobs_with_names_that_cannot_be_read_back_are_found_by_id(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_plan, "SMALL", 0)
    monkeypatch.setattr(listing_plan, "MAX_SORTED", 0)
    monkeypatch.setattr(listing, "SHORT_SCAN", 1)
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        for queue in (b"a\xff", b"a\0b", b"fine"):
            connection.execute(
                "INSERT INTO holdfast_jobs (queue, status) VALUES (CAST(? AS TEXT), 'failed')",
                (queue,),
            )
    found = app.store.jobs.list(Criteria(status=("failed",)), 1)
    assert [record.id for record in found.records] == [3]
    assert pages(app, Criteria(status=("failed",)), 1, None) == [3, 2, 1]


@pytest.fixture
def spread(app: Holdfast, url: str) -> Callable[..., list[Any]]:
    """Four jobs in as many zones, an hour apart; and a way to ask and change the database by hand."""
    connection = sqlite3.connect(url, isolation_level=None)
    for number in range(4):
        connection.execute(
            "INSERT INTO holdfast_jobs (id, task, created_at, run_at) VALUES (?, 't', ?, ?)",
            (1 + number * 10_000, HOUR * (1000 + number), HOUR * (1000 + number)),
        )
    return lambda statement, *values: connection.execute(statement, values).fetchall()


HOUR = 3_600_000_000


@pytest.mark.parametrize("folded", [False, True])
def test_a_search_by_time_reads_only_matching_zones(
    app: Holdfast, spread: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, folded: bool
) -> None:
    if folded:
        app.store.statistics.fold()
    for bound in ("SHORT_SCAN", "LONG_SCAN"):
        monkeypatch.setattr(listing, bound, 1)

    def listed(**times: int) -> list[int]:
        found = app.store.jobs.list(Criteria(**times), 1000)
        assert found.scanned is None
        return [record.id for record in found.records]

    assert listed(created_from=HOUR * 1002) == [30_001, 20_001]
    assert listed(created_before=HOUR * 1001) == [1]
    assert listed(created_from=HOUR * 1001, created_before=HOUR * 1002) == [10_001]
    assert listed(created_from=HOUR * 2000) == []


def test_a_time_that_plain_sql_changed_is_found(app: Holdfast, spread: Callable[..., list[Any]]) -> None:
    app.store.statistics.fold()
    spread("UPDATE holdfast_jobs SET created_at = ? WHERE id = 10001", HOUR * 1500)
    spread("UPDATE holdfast_jobs SET history = 0 WHERE id = 1")
    spread("UPDATE holdfast_jobs SET created_at = ? WHERE id = 1", HOUR * 1600)
    late = Criteria(created_from=HOUR * 1400)
    assert [record.id for record in app.store.jobs.list(late, 10).records] == [10_001, 1]
    spread("UPDATE holdfast_jobs SET history = 1 WHERE id = 1")
    assert [record.id for record in app.store.jobs.list(late, 10).records] == [10_001, 1]
    assert app.store.jobs.count(late) == Counted(2)


def test_zones_are_deleted_with_their_jobs(app: Holdfast, spread: Callable[..., list[Any]]) -> None:
    app.store.statistics.fold()
    assert spread("SELECT zone FROM holdfast_zones") == [(0,), (1,), (2,), (3,)]
    app.jobs.delete(created_before=datetime.fromtimestamp(1002 * 3600, UTC))
    app.queue("inbox").send(1)
    app.store.statistics.fold()
    assert spread("SELECT zone FROM holdfast_zones") == [(2,), (3,)]
