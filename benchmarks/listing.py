"""How long it takes to list jobs, by every filter, in large files of different kinds."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from holdfast import Holdfast
from holdfast.app.jobs import Filters, criteria
from holdfast.cli.bulk import MAX_SCANNED

from .files import build_file, mostly, remove
from .measure import Effort, Figure, Table

LIMIT = 50
REPEATS = 5
ENOUGH_MILLISECONDS = 500  # a slow listing is not repeated
DRY_RUN_SECONDS = 60.0  # for each file; dry runs that do not fit are left out
QUEUES = 5_000

NOTES = """\
- **Listing:** `app.jobs.list(limit=50)` for each filter, newest first and oldest first, and a dry run of a bulk
  delete, which counts what would be deleted; the median of up to five, fewer where they are slow. Dry runs that do
  not fit into a minute for each file are left out. In each file the jobs were created at even intervals over 25
  days; there are 20 tasks. 90 in 100 jobs have the status that is named, the others any. "Common" is what one in
  five (queue), one in twenty (task) or 2 in 100 jobs (tag) have, and most of those that failed (error); "rare" is
  what three jobs in the whole file have; "absent" is what none has. An hour "long ago" is 15 days back. "Stopped
  early" is a page with fewer jobs than were asked for that says there are more.
"""

# Three rows in the whole file, far apart.
_IS_RARE = "i % max(1, :rows / 3) = :rows / 6"
_COLUMNS = {
    "queue": f"CASE WHEN {_IS_RARE} THEN 'rare' ELSE 'queue-' || (i % 5) END",
    "task": f"CASE WHEN {_IS_RARE} THEN 'rare' ELSE 'task-' || (i % 20) END",
    "key": "CASE WHEN i % 100 = 1 THEN 'key-' || i END",
    "tags": f"""CASE WHEN {_IS_RARE} THEN '["rare"]' WHEN i % 50 = 1 THEN '["common"]' END""",
    "error_code": f"""CASE WHEN status <> 'failed' THEN NULL WHEN {_IS_RARE} THEN 'INTERNAL:RARE'
        WHEN i % 10 = 1 THEN 'TIMEOUT:HTTP' ELSE 'DEPENDENCY:MAIL' END""",
}


def _distribution(status: str, **columns: str) -> Mapping[str, str]:
    return _COLUMNS | {"status": f"CASE WHEN {_IS_RARE} THEN 'failed' ELSE {status} END"} | columns


DISTRIBUTIONS: dict[str, Mapping[str, str]] = {
    "most ready": _distribution(mostly("ready")),
    "most succeeded": _distribution(mostly("succeeded")),
    "most failed": _distribution(mostly("failed")),
    f"{QUEUES:,} queues": _distribution(
        f"CASE WHEN i / {QUEUES} % 2 = 0 THEN {mostly('ready')} ELSE {mostly('succeeded')} END",
        queue=f"CASE WHEN {_IS_RARE} THEN 'rare' ELSE 'queue-' || (i % {QUEUES}) END",
    ),
}
HEAD = (
    "filter",
    "file",
    "newest: ms",
    "rows",
    "stopped early",
    "oldest: ms",
    "rows",
    "stopped early",
    "dry run: ms",
    "would delete",
)
T = TypeVar("T")


class Answer(NamedTuple):
    taken: float  # milliseconds
    rows: int
    stopped_early: bool = False

    def cells(self) -> tuple[str, str, str]:
        return f"{self.taken:,.1f}", f"{self.rows:,}", "yes" if self.stopped_early else ""


def filters_by_name(now: datetime) -> dict[str, Filters]:
    """Every filter alone, and those that pages combine."""
    hour = timedelta(hours=1)
    then = now - timedelta(days=15)
    created: Filters = {"created_after": then, "created_before": then + hour}
    finished: Filters = {"finished_after": then, "finished_before": then + hour}
    statuses = ("ready", "scheduled", "blocked", "running", "succeeded", "failed", "cancelled")
    values: dict[str, dict[str, str]] = {
        "queue": {"common": "queue-1", "rare": "rare", "absent": "absent"},
        "task": {"common": "task-1", "rare": "rare", "absent": "absent"},
        "error_code": {"common": "DEPENDENCY:MAIL", "rare": "INTERNAL:RARE", "absent": "INTERNAL:ABSENT"},
        "tag": {"common": "common", "rare": "rare", "absent": "absent"},
        "key": {"of one": "key-1", "absent": "absent"},
    }
    found: dict[str, Any] = {"none": {}}
    found |= {f"status {status}": {"status": status} for status in statuses}
    found |= {f"{name} {kind}": {name: value} for name, kinds in values.items() for kind, value in kinds.items()}
    found |= {
        "created in the last hour": {"created_after": now - hour},
        "created in an hour long ago": created,
        "finished in the last hour": {"finished_after": now - hour},
        "finished in an hour long ago": finished,
        "status failed or cancelled": {"status": ["failed", "cancelled"]},
    }
    for status in ("ready", "succeeded", "failed"):
        found |= {
            f"status {status} + queue common": {"status": status, "queue": "queue-1"},
            f"status {status} + queue rare": {"status": status, "queue": "rare"},
            f"status {status} + task common": {"status": status, "task": "task-1"},
            f"status {status} + task rare": {"status": status, "task": "rare"},
            f"status {status} + tag common": {"status": status, "tag": "common"},
            f"status {status} + tag rare": {"status": status, "tag": "rare"},
            f"status {status} + created long ago": {"status": status, **created},
        }
    for status in ("succeeded", "failed"):
        found[f"status {status} + finished long ago"] = {"status": status, **finished}
    found |= {
        "status failed + error common": {"status": "failed", "error_code": "DEPENDENCY:MAIL"},
        "status failed + error rare": {"status": "failed", "error_code": "INTERNAL:RARE"},
        "queue + task, both common": {"queue": "queue-1", "task": "task-1"},
        "queue + task, never together": {"queue": "queue-1", "task": "task-2"},
        "queue + error": {"queue": "queue-1", "error_code": "DEPENDENCY:MAIL"},
        "queue + tag": {"queue": "queue-1", "tag": "common"},
        "queue + created long ago": {"queue": "queue-1", **created},
        "queue + finished long ago": {"queue": "queue-1", **finished},
        "task + created long ago": {"task": "task-1", **created},
        "task + finished long ago": {"task": "task-1", **finished},
        "status failed + queue + task": {"status": "failed", "queue": "queue-1", "task": "task-1"},
        "status failed + queue + created long ago": {"status": "failed", "queue": "queue-1", **created},
    }
    return found


def figures(folder: Path, effort: Effort) -> Iterator[Figure | Table]:
    path = folder / "listing.db"
    rows: list[tuple[str, ...]] = []
    times: dict[str, float] = {}
    for file, columns in DISTRIBUTIONS.items():
        begin = perf_counter()
        build_file(path, effort.rows, columns)
        print(f"[{file}: {path.stat().st_size / 1e9:.1f} GB built in {perf_counter() - begin:.0f} s]", flush=True)
        with Holdfast(path) as app:
            assert app.observe.counts().total == effort.rows
            left_seconds = DRY_RUN_SECONDS
            for name, filters in filters_by_name(datetime.now(UTC)).items():
                newest, oldest = _newest(app, filters), _oldest(app, filters)
                times |= {f"{name}, newest, {file}": newest.taken, f"{name}, oldest, {file}": oldest.taken}
                counted = ("", "")
                if left_seconds > 0:
                    begin = perf_counter()
                    counted = _dry_run(app, filters).cells()[:2]
                    left_seconds -= perf_counter() - begin
                rows.append((name, file, *newest.cells(), *oldest.cells(), *counted))
        remove(path)
    names = list(filters_by_name(datetime.now(UTC)))
    rows.sort(key=lambda row: names.index(row[0]))
    yield Table(f"Listing with {effort.rows:,} jobs in the file", HEAD, rows)
    slowest = max(times, key=lambda name: times[name])
    ours = f"{slowest}; median of all {median(times.values()):.1f} ms"
    name = f"slowest of {len(times)} listings with {effort.rows:,} jobs in the file"
    yield Figure(name, ours, reached=times[slowest], unit="ms")


def _newest(app: Holdfast, filters: Filters) -> Answer:
    taken, page = _timed(lambda: app.jobs.list(limit=LIMIT, **filters))
    return Answer(taken, len(page), len(page) < LIMIT and page.next is not None)


def _oldest(app: Holdfast, filters: Filters) -> Answer:
    """From a cursor before the first job on."""
    taken, page = _timed(lambda: app.jobs.list(limit=LIMIT, cursor="newer-0", **filters))
    return Answer(taken, len(page), len(page) < LIMIT and page.previous is not None)


def _dry_run(app: Holdfast, filters: Filters) -> Answer:
    """Count what a bulk delete would delete, as `holdfast delete --dry-run` does."""
    wanted = criteria(filters)
    return Answer(*_timed(lambda: app.store.jobs.count(wanted, deletable=True, max_scanned=MAX_SCANNED).count))


def _timed(action: Callable[[], T]) -> tuple[float, T]:
    """The median of the milliseconds that it takes, and what it returns."""
    taken: list[float] = []
    while True:
        begin = perf_counter()
        result = action()
        taken.append((perf_counter() - begin) * 1000)
        if len(taken) == REPEATS or sum(taken) > ENOUGH_MILLISECONDS:
            return median(taken), result
