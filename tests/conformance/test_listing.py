"""Finding jobs: by id, by filters, and page by page in both directions while rows come and go."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Job, Page, Task
from holdfast.errors import InvalidInput, JobNotFound
from holdfast.failure import Failure
from holdfast.testing import FakeClock
from support.transitions import claim_tasks, fail, succeed


@pytest.fixture
def work(app: Holdfast) -> Task[[int], None]:
    @app.task
    def work(x: int) -> None: ...

    return work


def ids(jobs: Page[Job[Any]]) -> list[int]:
    return [job.id for job in jobs]


def test_get_finds_a_job_by_id(app: Holdfast, work: Task[[int], None]) -> None:
    job = work.enqueue(5)
    found = app.jobs.get(job.id)
    assert (found.id, found.task, found.args) == (job.id, "work", {"x": 5})


def test_get_finds_a_message_too(app: Holdfast) -> None:
    message = app.queue("inbox").send([1, 2])
    found = app.jobs.get(message)
    assert (found.task, found.queue, found.args) == (None, "inbox", [1, 2])


def test_get_of_no_job_says_so(app: Holdfast) -> None:
    with pytest.raises(JobNotFound, match="there is no job 77"):
        app.jobs.get(77)


def test_a_handle_tells_what_it_read_until_it_is_refreshed(app: Holdfast, work: Task[[int], None]) -> None:
    job = work.enqueue(1)
    app.jobs.cancel(job.id)
    assert job.status == "ready"
    assert job.refresh().status == "cancelled"
    assert (job.is_finished, job.finished_at) == (True, job.created_at)


def test_refresh_of_a_deleted_job_says_so(app: Holdfast, work: Task[[int], None]) -> None:
    job = work.enqueue(1)
    app.jobs.delete(job.id)
    with pytest.raises(JobNotFound):
        job.refresh()


def test_a_listing_is_newest_first_tasks_and_messages_alike(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(1).id, app.queue("inbox").send("m"), work.enqueue(2).id]
    assert ids(app.jobs.list()) == made[::-1]


# --- filters ---


@pytest.fixture
def zoo(app: Holdfast, clock: FakeClock) -> dict[str, int]:
    """One job of each kind, ten seconds apart."""

    @app.task(queue="mail", max_attempts=1)
    def send_mail() -> None: ...

    @app.task(queue="media")
    def thumbnail() -> None: ...

    made: dict[str, int] = {}

    def put(name: str, id: int) -> None:
        made[name] = id
        clock.advance(10)

    put("succeeded", send_mail.enqueue().id)
    put("failed", send_mail.using(tags=["a", "b"]).enqueue().id)
    put("cancelled", thumbnail.using(tags="b").enqueue().id)
    put("running", thumbnail.using(queue="mail").enqueue().id)
    put("ready", thumbnail.using(key="k").enqueue().id)
    put("scheduled", send_mail.using(delay=9999, tags="c").enqueue().id)
    put("message", app.queue("mail").send("hello", key="k"))
    first, second = claim_tasks(app.store, ["mail"], ["send_mail"], 2, 10**9, "worker-1")
    succeed(app.store, first.lease)
    clock.advance(10)
    fail(app.store, second.lease, Failure("DEPENDENCY:SMTP", "refused", "f1", "somewhere"))
    clock.advance(10)
    app.jobs.cancel(made["cancelled"])
    claim_tasks(app.store, ["mail"], ["thumbnail"], 1, 10**9, "worker-1")
    return made


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"status": "succeeded"}, "succeeded"),
    ({"status": "failed"}, "failed"),
    ({"status": "cancelled"}, "cancelled"),
    ({"status": "running"}, "running"),
    ({"status": "scheduled"}, "scheduled"),
    ({"status": "ready"}, "ready message"),
    ({"status": "blocked"}, ""),
    ({"status": ["failed", "cancelled"]}, "failed cancelled"),
    ({"queue": "media"}, "cancelled ready"),
    ({"queue": ["media", "mail"]}, "succeeded failed cancelled running ready scheduled message"),
    ({"task": "thumbnail"}, "cancelled running ready"),
    ({"task": ["thumbnail", "unknown"]}, "cancelled running ready"),
    ({"key": "k"}, "ready message"),
    ({"key": ["k", "other"]}, "ready message"),
    ({"key": "other"}, ""),
    ({"error_code": "DEPENDENCY:SMTP"}, "failed"),
    ({"error_code": ("DEPENDENCY:SMTP", "TIMEOUT:LEASE")}, "failed"),
    ({"fingerprint": "f1"}, "failed"),
    ({"fingerprint": ["f1", "f2"], "status": "failed", "queue": "mail"}, "failed"),
    ({"fingerprint": "f2"}, ""),
    ({"tag": "b"}, "failed cancelled"),
    ({"tag": ["a", "c"]}, "failed scheduled"),
    ({"tag": "unknown"}, ""),
    ({"queue": "mail", "status": "ready"}, "message"),
    ({"queue": "mail", "task": "thumbnail", "status": ["running", "ready"]}, "running"),
    ({"tag": "b", "status": "failed"}, "failed"),
    ({"task_like": "send_*"}, "succeeded failed scheduled"),
    ({"task_like": ["*nail", "x"]}, "cancelled running ready"),
    ({"task_like": "*_m*l", "task": "thumbnail"}, "succeeded failed cancelled running ready scheduled"),
    ({"task_like": "Send_*"}, ""),
    ({"task_like": "thumbnai?"}, ""),
    ({"task_like": "[t]humbnail"}, ""),
    ({"task_like": "nothing*", "status": "ready"}, ""),
    ({"queue_like": "m*", "status": "ready"}, "ready message"),
    ({"queue_like": "med*", "task_like": "*"}, "cancelled ready"),
    ({"error_code_like": "DEPEND*"}, "failed"),
    ({"error_code_like": "*SMTP", "status": "failed"}, "failed"),
    ({"error_code_like": "TIMEOUT*"}, ""),
    ({"error_code_like": "TIMEOUT*", "error_code": "DEPENDENCY:SMTP"}, "failed"),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS, ids=[str(filters) for filters, _ in FILTERS])
def test_filters_choose_jobs(app: Holdfast, zoo: dict[str, int], filters: Any, expected: str) -> None:
    assert sorted(ids(app.jobs.list(**filters))) == sorted(zoo[name] for name in expected.split())


def test_a_pattern_finds_what_lies_behind_many_others(app: Holdfast, work: Task[[int], None]) -> None:
    """An index is used: the scan by id would stop before it."""
    app.jobs.fail(work.enqueue(0).id, "RARE:CODE")
    app.queue("rare-queue").send(1)
    app.queue("inbox").send_many(range(3000))
    for filters in ({"task_like": "wor*"}, {"error_code_like": "RARE*"}, {"queue_like": "rare*"}):
        page = app.jobs.list(**filters)
        assert (len(page), page.scanned) == (1, None), filters


ARGUMENTS: list[tuple[dict[str, str], list[int]]] = [
    ({"to": "ada@example.org"}, [1]),
    ({"to": "ada*"}, [1, 2]),
    ({"to": "*"}, [1, 2]),
    ({"user.name": "Eve"}, [3]),
    ({"user.name": "Eve", "n": "7"}, [3]),
    ({"n": "7"}, [3, 4]),
    ({"n": "7*"}, [3, 4]),
    ({"ok": "true"}, [5]),
    ({"ok": "1"}, []),
    ({"none": "null"}, [5]),
    ({"list.0": "x"}, [5]),
    ({"to": "[a]da*"}, []),
    ({"missing": "*"}, []),
]


@pytest.mark.parametrize(("args", "expected"), ARGUMENTS, ids=[str(args) for args, _ in ARGUMENTS])
def test_values_in_the_payload_choose_jobs(app: Holdfast, args: dict[str, str], expected: list[int]) -> None:
    inbox = app.queue("inbox")
    inbox.send({"to": "ada@example.org"})
    inbox.send({"to": "ada"})
    inbox.send({"user": {"name": "Eve"}, "n": 7})
    inbox.send({"n": "7"})
    inbox.send({"ok": True, "none": None, "list": ["x"]})
    inbox.send("text")
    inbox.send([1, 2])
    assert sorted(ids(app.jobs.list(args=args))) == expected
    assert app.jobs.count(args=args) == len(expected)


@pytest.mark.parametrize("args", ["to", {"": "x"}, {"a..b": "x"}, {'a"b': "x"}, {"a": 1}, {1: "a"}, {"a": "\0"}])
def test_a_wrong_path_or_pattern_is_refused(app: Holdfast, args: Any) -> None:
    with pytest.raises(InvalidInput, match="args"):
        app.jobs.list(args=args)


def test_a_bulk_action_checks_patterns_again(app: Holdfast, zoo: dict[str, int]) -> None:
    assert app.jobs.cancel(task_like="thumb*", status="ready") == 1
    assert app.jobs.get(zoo["ready"]).status == "cancelled"
    assert app.jobs.delete(args={"x": "1"}) == 0
    assert app.jobs.retry(error_code_like="DEP*") == 1


def test_a_range_of_creation_includes_its_start_and_not_its_end(app: Holdfast, zoo: dict[str, int]) -> None:
    start, end = (app.jobs.get(zoo[name]).created_at for name in ("cancelled", "ready"))
    found = app.jobs.list(created_after=start, created_before=end)
    assert ids(found) == [zoo["running"], zoo["cancelled"]]


def test_a_range_of_ends_includes_its_start_and_not_its_end(app: Holdfast, zoo: dict[str, int]) -> None:
    start, end = (app.jobs.get(zoo[name]).finished_at for name in ("succeeded", "cancelled"))
    assert start is not None and end is not None
    assert ids(app.jobs.list(finished_after=start, finished_before=end)) == [zoo["failed"], zoo["succeeded"]]


def test_a_range_of_ends_leaves_out_what_has_not_ended(app: Holdfast, zoo: dict[str, int]) -> None:
    long_ago = app.jobs.get(zoo["succeeded"]).created_at - timedelta(days=9)
    assert ids(app.jobs.list(finished_after=long_ago)) == [zoo["cancelled"], zoo["failed"], zoo["succeeded"]]


@pytest.mark.parametrize(
    "filters", [{"status": "done"}, {"status": ["ready", "x"]}, {"state": "ready"}, {"queue": []}]
)
def test_an_unknown_filter_is_refused(app: Holdfast, filters: Any) -> None:
    with pytest.raises(InvalidInput):
        app.jobs.list(**filters)


def test_a_range_without_time_zone_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="time zone"):
        app.jobs.list(created_after=datetime(2026, 1, 1))  # noqa: DTZ001


# --- pages ---


def forwards(app: Holdfast, page: Page[Job[Any]], **filters: Any) -> list[list[int]]:
    pages = [ids(page)]
    while page.next is not None:
        page = app.jobs.list(limit=3, cursor=page.next, **filters)
        pages.append(ids(page))
    return pages


def test_pages_lead_to_the_oldest_and_each_job_comes_once(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(7)][::-1]
    assert forwards(app, app.jobs.list(limit=3)) == [made[:3], made[3:6], made[6:]]


def test_a_last_page_that_is_just_full_has_no_next(app: Holdfast, work: Task[[int], None]) -> None:
    work.enqueue_many([{"x": 1}] * 6)
    assert [len(page) for page in forwards(app, app.jobs.list(limit=3))] == [3, 3]


def test_pages_lead_back_to_the_newest(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(7)][::-1]
    second = app.jobs.list(limit=3, cursor=app.jobs.list(limit=3).next)
    third = app.jobs.list(limit=3, cursor=second.next)
    back_to_second = app.jobs.list(limit=3, cursor=third.previous)
    back_to_first = app.jobs.list(limit=3, cursor=back_to_second.previous)
    assert [ids(back_to_second), ids(back_to_first)] == [made[3:6], made[:3]]
    assert (back_to_first.previous, back_to_second.next is not None) == (None, True)


def test_the_first_page_has_no_previous(app: Holdfast, work: Task[[int], None]) -> None:
    work.enqueue_many([{"x": 1}] * 6)
    assert app.jobs.list(limit=3).previous is None


def test_new_jobs_do_not_shift_the_pages(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(6)][::-1]
    first = app.jobs.list(limit=3)
    work.enqueue_many([{"x": 1}] * 4)
    assert ids(app.jobs.list(limit=3, cursor=first.next)) == made[3:]


def test_jobs_that_came_meanwhile_are_found_on_the_way_back(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(6)][::-1]
    second = app.jobs.list(limit=3, cursor=app.jobs.list(limit=3).next)
    newer = work.enqueue(99).id
    back = app.jobs.list(limit=3, cursor=second.previous)
    assert ids(back) == made[:3]
    assert ids(app.jobs.list(limit=3, cursor=back.previous)) == [newer]


def test_deleted_jobs_do_not_shift_the_pages(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(6)][::-1]
    first = app.jobs.list(limit=3)
    for id in made[1:4]:  # among them the job at the end of the page
        app.jobs.delete(id)
    assert ids(app.jobs.list(limit=3, cursor=first.next)) == made[4:]


def test_jobs_that_leave_the_filter_do_not_shift_the_pages(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(6)][::-1]
    first = app.jobs.list(limit=3, status="ready")
    for id in made[1:4]:
        app.jobs.cancel(id)
    assert forwards(app, app.jobs.list(limit=3, status="ready", cursor=first.next), status="ready") == [made[4:]]


def test_pages_of_a_filter_hold_what_fits_only(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.using(tags="odd" if number % 2 else "even").enqueue(number).id for number in range(14)][::-1]
    assert forwards(app, app.jobs.list(limit=3, tag="even"), tag="even") == [made[1:7:2], made[7:13:2], made[13:]]


def test_a_page_that_has_become_empty_still_leads_back(app: Holdfast, work: Task[[int], None]) -> None:
    made = [work.enqueue(number).id for number in range(4)][::-1]
    cursor = app.jobs.list(limit=3).next
    app.jobs.delete(made[3])
    empty = app.jobs.list(limit=3, cursor=cursor)
    assert (ids(empty), empty.next) == ([], None)
    assert empty.previous is not None
    assert ids(app.jobs.list(limit=3, cursor=empty.previous)) == made[:3]


@pytest.mark.parametrize(
    "cursor", ["", "nonsense", "12", "older-", "older--1", "newer-1.5", "older-" + "9" * 40, "ÿ"]
)
def test_a_cursor_of_somebody_elses_making_is_refused(app: Holdfast, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        app.jobs.list(cursor=cursor)
