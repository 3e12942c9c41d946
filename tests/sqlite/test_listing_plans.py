"""A listing reads a bounded part of an index, whatever the filters are and whatever most of the jobs are.

Work is counted in instructions of SQLite's machine, among 40,000 jobs and with a twentieth of the usual bounds.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.model.job import Criteria, Cursor, Status
from holdfast.model.workflow import BatchState
from holdfast.store import listing, listing_plan, statistics, workflow
from holdfast.store.listing import where
from holdfast.store.listing_plan import IdRange, JobIndexes, OrderedIndex, SortedScan

JOBS = 40_000
START, SECOND = 1_700_000_000_000_000, 1_000_000
BOUNDS = {
    listing: {"SHORT_SCAN": 50, "LONG_SCAN": 1_000, "MAX_LOOKUPS": 250},
    listing_plan: {"SMALL": 250, "MAX_SORTED": 2_500, "MAX_RANGES": 50, "MAX_COUNTED_PAIRS": 250},
}
MOST_STEPS = 100_000  # a look at each job, without its columns, takes more

PLACES = "CASE i % 10 WHEN 0 THEN 'a' ELSE 'default' END, CASE WHEN i % 7 = 0 THEN NULL ELSE 'work' END"
CROWDS = {
    "most succeeded": (PLACES, "CASE WHEN i > 39900 THEN 'ready' WHEN i % 97 = 0 THEN 'failed' ELSE 'succeeded' END"),
    "most ready": (PLACES, "CASE WHEN i > 4000 THEN 'ready' WHEN i % 9 = 0 THEN 'failed' ELSE 'succeeded' END"),
    "most failed": (PLACES, "CASE WHEN i < 32000 THEN 'failed' WHEN i % 9 = 0 THEN 'scheduled' ELSE 'succeeded' END"),
    "many queues": (
        "'q' || (i % 200), CASE WHEN i % 4001 = 0 THEN 'rare' ELSE 'work' END",
        "CASE i / 200 % 5 WHEN 0 THEN 'failed' WHEN 1 THEN 'ready' WHEN 2 THEN 'scheduled' ELSE 'succeeded' END",
    ),
}
INSERT = """
WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {jobs}),
    made (i, queue, task, status) AS (SELECT i, {places}, {status} FROM numbers)
INSERT INTO holdfast_jobs (id, queue, task, status, priority, created_at, run_at, finished_at, error_code, key, tags,
    batch_id, fingerprint)
SELECT i, queue, task, status, i % 3, {start} + i * {second}, {start} + i * {second},
    CASE WHEN status IN ('failed', 'succeeded') THEN {start} + (i + 50) * {second} END,
    CASE WHEN status = 'failed' THEN 'TEST:' || (i % 2) END,
    CASE WHEN status IN ('failed', 'succeeded') THEN 'key' || (i % 4) END,
    CASE WHEN i % 5 = 0 THEN '["often"]' WHEN i % 5003 = 1 THEN '["seldom"]' END,
    CASE WHEN i % 3 = 0 THEN 1 WHEN i % 5003 = 2 THEN 2 END,
    CASE WHEN status = 'failed' THEN CASE WHEN i % 4999 < 50 THEN 'rare' ELSE 'common' END END
FROM made
"""
BATCHES = """
WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {jobs})
INSERT INTO holdfast_batches (id, created_at, sealed_at, done_at, abandoned_at)
SELECT i, i, CASE WHEN i > 2 THEN i END, CASE WHEN i > 4 THEN i END, CASE WHEN i IN (4, 5) THEN i END FROM numbers
"""


@pytest.fixture(scope="module", params=CROWDS)
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    path = tmp_path_factory.mktemp("crowd") / "app.db"
    places, status = CROWDS[request.param]
    with Holdfast(path) as app, pytest.MonkeyPatch.context() as patch:
        for module in (listing, statistics):
            patch.setattr(module, "ZONE_IDS", 400)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(INSERT.format(jobs=JOBS, places=places, status=status, start=START, second=SECOND))
            connection.execute(BATCHES.format(jobs=JOBS))
        while app.store.statistics.fold():
            pass
        yield app


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in BOUNDS.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


def steps(app: Holdfast, work: Callable[[], Any], every: int = 100) -> int:
    """How many instructions SQLite takes for it, on the connection of this thread."""
    count = 0

    def step() -> None:
        nonlocal count
        count += every

    with app.store.snapshot():
        connection = app.store.database._this_thread.reader
        connection.set_progress_handler(step, every)
        try:
            work()
        finally:
            connection.set_progress_handler(None, 0)
    return count


def at(number: int) -> int:
    return START + number * SECOND


CRITERIA = {
    "all": Criteria(),
    **{status.value: Criteria(status=(status,)) for status in Status},
    "unfinished": Criteria(status=("blocked", "scheduled", "ready", "running")),
    "failed or cancelled": Criteria(status=("failed", "cancelled")),
    **{f"{status.value} in a queue": Criteria(status=(status,), queue=("a",)) for status in Status},
    **{f"{status.value} in a small queue": Criteria(status=(status,), queue=("q7",)) for status in Status},
    **{f"{status.value} messages": Criteria(status=(status,), messages=True) for status in Status},
    **{f"{status.value} of a rare task": Criteria(status=(status,), task=("rare",)) for status in Status},
    "in a queue": Criteria(queue=("a",)),
    "in no queue": Criteria(queue=("nowhere",)),
    "of a task": Criteria(task=("work",)),
    "of no task": Criteria(task=("nothing",)),
    "messages": Criteria(messages=True),
    "tasks": Criteria(messages=False),
    "by code": Criteria(error_code=("TEST:1",)),
    "by code and state": Criteria(error_code=("TEST:1",), status=("failed",), queue=("a",)),
    "by code and another state": Criteria(error_code=("TEST:1",), status=("succeeded",)),
    "by rare fingerprint": Criteria(fingerprint=("rare",), status=("failed",)),
    "by frequent fingerprint": Criteria(fingerprint=("common",), status=("failed",), queue=("a",)),
    "by fingerprint and another state": Criteria(fingerprint=("common",), status=("succeeded",)),
    "by tag": Criteria(tag=("often",)),
    "by rare tag": Criteria(tag=("seldom",)),
    "by tag and state": Criteria(tag=("often",), status=("failed",)),
    "by tag and queue": Criteria(tag=("often", "seldom"), queue=("a",)),
    "by key": Criteria(key=("key1",)),
    "by key and queue": Criteria(key=("key1",), queue=("a",)),
    "lately": Criteria(created_from=at(JOBS - 20)),
    "never": Criteria(created_from=at(2 * JOBS)),
    "long ago": Criteria(created_before=at(20)),
    "failed lately": Criteria(status=("failed",), created_from=at(JOBS - 20)),
    "ended lately": Criteria(finished_from=at(JOBS - 20)),
    "ended long ago": Criteria(finished_before=at(100)),
    "ended in between": Criteria(finished_from=at(5_000), finished_before=at(30_000)),
    "chains": Criteria(roots=True, messages=False),
    **{f"{status.value} chains": Criteria(roots=True, chain_status=(status,), messages=False) for status in Status},
    "ids": Criteria(ids=tuple(range(1, 500))),
    "in the inbox": Criteria(inbox=True),
    "in a batch": Criteria(batch_id=(1,)),
    "in a small batch": Criteria(batch_id=(2,)),
    "in no batch": Criteria(batch_id=(3,)),
    **{f"{status.value} in a batch": Criteria(batch_id=(1,), status=(status,)) for status in Status},
    "in a batch and in a queue": Criteria(batch_id=(1, 2), queue=("a",)),
}
CURSORS = [None, Cursor(20_000), Cursor(20_000, newer=True)]


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("name", CRITERIA)
def test_a_page_takes_a_bounded_number_of_steps(crowd: Holdfast, name: str) -> None:
    taken = [steps(crowd, lambda: crowd.store.jobs.list(CRITERIA[name], 21, cursor)) for cursor in CURSORS]  # noqa: B023
    assert max(taken) < MOST_STEPS, taken


COMPLETE = [
    name for name in CRITERIA if not re.search("(tag|code) and state|another state|key and queue|ended|chains", name)
]


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("name", COMPLETE)
def test_one_or_two_filters_need_no_second_page(crowd: Holdfast, name: str) -> None:
    """What stops before its end is the exception."""
    stopped = [cursor for cursor in CURSORS if crowd.store.jobs.list(CRITERIA[name], 21, cursor).scanned is not None]
    assert stopped == []


@pytest.mark.parametrize(
    ("state", "found"), [(None, 50), ("open", 2), ("running", 2), ("done", 50), ("abandoned", 2)], ids=str
)
def test_a_page_of_batches_takes_a_bounded_number_of_steps(
    crowd: Holdfast, state: BatchState | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches there are, and members in one of them."""
    monkeypatch.setattr(workflow, "MAX_COUNTED", 50)
    cursors = [None, Cursor(20_000), Cursor(0, newer=True)]
    pages = [crowd.store.workflows.batches(state, 50, cursor) for cursor in cursors]
    assert {len(page) for page in pages} == {found}
    taken = [steps(crowd, lambda: crowd.store.workflows.batches(state, 50, cursor)) for cursor in cursors]  # noqa: B023
    assert max(taken) < MOST_STEPS, taken


def test_a_scan_of_all_jobs_takes_more_steps(crowd: Holdfast) -> None:
    def walk() -> None:
        crowd.store.database.rows("SELECT count(*) FROM holdfast_jobs NOT INDEXED WHERE status = 'new'")

    assert steps(crowd, walk) > MOST_STEPS


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("name", ["succeeded", "failed", "in a queue", "failed messages", "of a task"])
@pytest.mark.parametrize("deletable", [False, True])
def test_counts_by_queue_task_and_status_read_no_job(crowd: Holdfast, name: str, deletable: bool) -> None:
    assert steps(crowd, lambda: crowd.store.jobs.count(CRITERIA[name], deletable)) < 20_000


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("name", ["of no task", "ready of a rare task", "failed of a rare task"])
def test_a_task_that_few_queues_have_is_found_by_the_counts(crowd: Holdfast, name: str) -> None:
    """Without a longer scan by id, and without a lookup for each queue."""
    assert steps(crowd, lambda: crowd.store.jobs.list(CRITERIA[name], 21), every=20) < 20_000


def test_a_dry_run_looks_at_each_job_where_it_counts_it(crowd: Holdfast) -> None:
    """And not before, to leave out those that do not match."""
    jobs = crowd.store.jobs.count(CRITERIA["by tag"]).count
    assert jobs == JOBS / 5
    taken = steps(crowd, lambda: crowd.store.jobs.count(CRITERIA["by tag"], deletable=True))
    assert taken / jobs < 75  # 63; with another look at each 91


# --- plans ---


@pytest.fixture
def fill(app: Holdfast) -> Callable[[], None]:
    def rows() -> None:
        app.queue("inbox").send_many(range(300))
        app.task(name="work")(lambda: None).using(key="k", tags="t").enqueue()

    return rows


def explain(connection: sqlite3.Connection, statement: str) -> list[str]:
    values = dict.fromkeys(re.findall(r"(?<![\w:]):([a-z_0-9]+)", statement), "1")
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()]


def on_tables(lines: list[str]) -> list[str]:
    return [line for line in lines if re.search(r"^(SCAN|SEARCH) holdfast", line)]


ORDERS: dict[str, Callable[[JobIndexes], OrderedIndex]] = {
    "logged": lambda indexes: indexes.queue_task[0],
    "unlogged": lambda indexes: indexes.queue_task[1],
    "error": lambda indexes: indexes.error_code,
    "fingerprint": lambda indexes: indexes.fingerprint,
    "tag": lambda indexes: indexes.tag,
    "batch": lambda indexes: indexes.batch,
    "external": lambda indexes: indexes.external,
    "ready": lambda indexes: indexes.by_status[Status.READY],
    "blocked": lambda indexes: indexes.by_status[Status.BLOCKED],
    "failed": lambda indexes: indexes.by_status[Status.FAILED],
}
PARTS: dict[str, Callable[[JobIndexes], SortedScan]] = {
    "ready": lambda indexes: indexes.all_of(Status.READY),
    "scheduled": lambda indexes: indexes.all_of(Status.SCHEDULED),
    "running": lambda indexes: indexes.all_of(Status.RUNNING),
    "blocked": lambda indexes: indexes.all_of(Status.BLOCKED),
    "failed": lambda indexes: indexes.all_of(Status.FAILED),
    "finished": lambda indexes: indexes.all_of(Status.SUCCEEDED),
    "key": lambda indexes: indexes.with_key("k"),
    "unlogged": lambda indexes: indexes.without_history,
}
SPANS = [IdRange(), IdRange(ascending=True)]


@pytest.fixture
def indexes(app: Holdfast) -> JobIndexes:
    return JobIndexes(app.store.database)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", ORDERS)
def test_a_range_is_read_in_its_order(
    app: Holdfast, conn: sqlite3.Connection, indexes: JobIndexes, name: str, span: IdRange
) -> None:
    order, sql = ORDERS[name](indexes), app.store.database.sql
    bound = [f":value_{n}" for n, _ in enumerate(order.columns)]
    extracted = [f"json_extract(range.value, '$[{n}]')" for n, _ in enumerate(order.columns)]
    for statement, values in ((sql.range_ids, bound), (sql.heads, extracted), (sql.size_of_ranges, extracted)):
        lines = explain(conn, span.fill(order.fill(statement, values)))
        assert on_tables(lines), lines
        assert all(re.search(rf"SEARCH.* INDEX holdfast_(jobs|tags)_{name}\b", line) for line in on_tables(lines)), (
            lines
        )
        assert not any("TEMP B-TREE" in line for line in lines), lines


@pytest.mark.parametrize("name", ["logged", "unlogged", "ready", "blocked", "failed"])
def test_the_ranges_are_found_by_a_skip_scan(
    app: Holdfast, conn: sqlite3.Connection, indexes: JobIndexes, name: str
) -> None:
    sql = app.store.database.sql
    names = ["queues_in", "tasks_in", *(["priorities_in"] if name == "ready" else [])]
    for template in names:
        lines = explain(conn, ORDERS[name](indexes).fill(getattr(sql, template)))
        found = [line for line in on_tables(lines) if not line.startswith("SCAN found")]
        assert all(re.search(rf"SEARCH.* INDEX holdfast_jobs_{name}\b", line) for line in found), lines


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_read_by_its_index(app: Holdfast, conn: sqlite3.Connection, indexes: JobIndexes, name: str) -> None:
    part, sql = PARTS[name](indexes), app.store.database.sql
    for template in (sql.sorted_ids, sql.size_of_part):
        (line,) = on_tables(explain(conn, IdRange().fill(part._fill(template))))
        assert f"INDEX holdfast_jobs_{name}" in line


CLAUSES = [
    "true",
    "status = 'failed' AND queue = 'a'",
    "error_code = 'x'",
    "finished_at > 5 AND status = 'succeeded'",
]


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("name", ["scan_ids", "scan_end", "matching", "records"])
def test_jobs_are_scanned_by_id(app: Holdfast, conn: sqlite3.Connection, name: str, clause: str) -> None:
    statement = getattr(app.store.database.sql, name).replace("{where}", clause).replace("{columns}", "*")
    lines = explain(conn, IdRange().fill(statement))
    assert all("SEARCH holdfast_jobs USING INTEGER PRIMARY KEY" in line for line in on_tables(lines)), lines
    if name.startswith("scan_ids"):
        assert not any("TEMP B-TREE" in line for line in lines), lines


def test_a_tag_is_looked_up_for_each_job(app: Holdfast, conn: sqlite3.Connection) -> None:
    """A list of all jobs with that tag would be made first, however many there are."""
    clause, _ = where(Criteria(tag=("t",)), app.store.database)
    lines = explain(conn, app.store.database.sql.matching.replace("{where}", clause))
    (line,) = [line for line in on_tables(lines) if "tags" in line]
    assert re.search(r"^SEARCH .*(job_id=\? AND tag=\?|tag=\? AND job_id=\?)", line)


def test_every_index_of_an_access_path_is_tested() -> None:
    text = Path(listing.__file__).with_name("listing_plan.py").read_text(encoding="utf-8")
    named = set(re.findall(r'self\._jobs\("(\w+)"\)', text)) | set(re.findall(r'Status\.\w+: "(\w+)"', text))
    assert named <= {*ORDERS, *PARTS}
