"""`assert_enqueued`, `refute_enqueued`, `enqueued`: what matches, and what a failure says."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from textwrap import dedent
from typing import Any
from unittest.mock import ANY

import pytest

from holdfast import Context, Holdfast, Task
from holdfast.app.options import OPTIONS, EnqueueOptions, Option
from holdfast.clock import SECOND
from holdfast.errors import InvalidArguments, InvalidInput
from holdfast.model.job import NewJob
from holdfast.testing import FakeClock, assert_enqueued, drain, enqueued, refute_enqueued


@dataclass
class Money:
    amount: int
    currency: str = "CHF"


@pytest.fixture
def mail(app: Holdfast) -> Task[..., Any]:
    @app.task(queue="mail")
    def send_mail(ctx: Context, to: str, subject: str = "hi", *, price: Money | None = None) -> None: ...

    return send_mail


def test_an_enqueued_task_is_found(mail: Task[..., Any]) -> None:
    job = mail.enqueue("ada")
    assert [one.id for one in assert_enqueued(mail)] == [job.id]
    with pytest.raises(AssertionError, match="expected no job of send_mail, found 1"):
        refute_enqueued(mail)


def test_every_option_of_using_is_compared_or_known_not_to_be_kept() -> None:
    not_kept = {name for name in EnqueueOptions.__annotations__ if OPTIONS[name].of_job is None}
    assert not_kept == {"key_window", "on_conflict", "conn"}


def test_a_new_option_needs_no_change_here(mail: Task[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EnqueueOptions.__annotations__, "color", str)
    monkeypatch.setitem(OPTIONS, "color", Option(str, "not kept by jobs"))
    mail.enqueue("ada")
    assert_enqueued(mail.using(color="red"), "ada")  # type: ignore[call-arg]


def test_a_task_that_was_not_enqueued_fails_the_assertion(mail: Task[..., Any], app: Holdfast) -> None:
    refute_enqueued(mail)
    assert enqueued(mail) == []
    with pytest.raises(AssertionError, match="no job of send_mail was enqueued; found no jobs at all"):
        assert_enqueued(mail)
    app.task(name="other")(lambda: None).enqueue_many([{}, {}])
    with pytest.raises(
        AssertionError, match="no job of send_mail was enqueued; found jobs of other tasks: 2 of other"
    ):
        assert_enqueued(mail)


def test_some_arguments_by_position_and_by_name(mail: Task[..., Any]) -> None:
    mail.enqueue("ada", subject="ho")
    assert_enqueued(mail, "ada")
    assert_enqueued(mail, "ada", "ho")
    assert_enqueued(mail, subject="ho")
    refute_enqueued(mail, "eve")
    refute_enqueued(mail, "ada", "hi")


def test_an_omitted_argument_has_its_default(mail: Task[..., Any]) -> None:
    mail.enqueue("ada")
    assert_enqueued(mail, subject="hi", price=None)
    refute_enqueued(mail, subject="ho")


def test_values_are_compared_as_they_are_stored(mail: Task[..., Any]) -> None:
    mail.enqueue("ada", price=Money(3))
    assert_enqueued(mail, price=Money(3, "CHF"))
    assert_enqueued(mail, price={"amount": 3, "currency": "CHF"})
    assert_enqueued(mail, to=ANY, price=ANY)
    refute_enqueued(mail, price=Money(4))
    refute_enqueued(mail, price=object())


def test_options_by_name_and_by_using(mail: Task[..., Any]) -> None:
    mail.using(queue="urgent", priority=5, key="k", tags=["a", "b"], max_attempts=2, timeout=9).enqueue("ada")
    for options in (
        {"queue": "urgent"},
        {"priority": 5},
        {"key": "k"},
        {"tags": "a"},
        {"tags": ["b", "a"]},
        {"max_attempts": 2},
        {"timeout": 9},
        {"queue": "urgent", "priority": 5, "key": "k", "tags": "b"},
    ):
        assert_enqueued(mail, "ada", **options)
        assert_enqueued(mail.using(**options), "ada")  # type: ignore[arg-type]
    for options in ({"queue": "mail"}, {"priority": 4}, {"key": "other"}, {"tags": ["a", "c"]}, {"timeout": 8}):
        refute_enqueued(mail, "ada", **options)
        refute_enqueued(mail.using(**options), "ada")  # type: ignore[arg-type]


def test_options_that_are_not_stored_are_ignored(mail: Task[..., Any]) -> None:
    mail.using(key="k").enqueue("ada")
    assert_enqueued(mail.using(key="k", key_window=60, on_conflict="replace"), "ada")


def test_delays_and_times_exact_or_as_a_range(mail: Task[..., Any], clock: FakeClock) -> None:
    mail.using(delay=60).enqueue("ada")
    due = datetime.fromtimestamp(clock.now() / SECOND, UTC) + timedelta(minutes=1)
    clock.advance(10)
    assert_enqueued(mail, delay=60)
    assert_enqueued(mail, delay=timedelta(minutes=1))
    assert_enqueued(mail, delay=(50, timedelta(seconds=60)))
    assert_enqueued(mail.using(delay=60))
    assert_enqueued(mail, run_at=due)
    assert_enqueued(mail.using(run_at=due))
    assert_enqueued(mail, run_at=(due - timedelta(seconds=1), due))
    refute_enqueued(mail, delay=0)
    refute_enqueued(mail, delay=(0, 59))
    refute_enqueued(mail, run_at=(due + timedelta(seconds=1), due + timedelta(seconds=2)))


def test_jobs_in_any_status_match(mail: Task[..., Any], app: Holdfast) -> None:
    mail.enqueue("ada")
    drain(app)
    assert_enqueued(mail, "ada", status="succeeded")
    assert_enqueued(mail, "ada", status=["failed", "succeeded"])
    refute_enqueued(mail, status="ready")


def test_count_is_the_exact_number(mail: Task[..., Any]) -> None:
    mail.enqueue_many([{"to": "ada"}, {"to": "eve"}, {"to": "ada"}])
    assert len(assert_enqueued(mail, "ada", count=2)) == 2
    assert_enqueued(mail, "bob", count=0)
    with pytest.raises(AssertionError, match="expected 3 jobs of send_mail with to='ada', found 2"):
        assert_enqueued(mail, "ada", count=3)
    with pytest.raises(AssertionError, match=r"expected 0 jobs of .*, found 1"):
        assert_enqueued(mail, "eve", count=0)


def test_all_tasks_of_an_app(mail: Task[..., Any], app: Holdfast) -> None:
    app.queue("inbox").send("a message is no task")
    refute_enqueued(app)
    first, second = mail.enqueue("ada"), app.task(name="other")(lambda: None).using(priority=3).enqueue()
    assert [job.id for job in enqueued(app)] == [first.id, second.id]
    assert [job.id for job in enqueued(app, priority=3)] == [second.id]
    with pytest.raises(AssertionError, match="job 3 other, ready on default"):
        refute_enqueued(app, queue="default")


def test_a_name_means_the_parameter_rather_than_the_option(app: Holdfast) -> None:
    @app.task
    def work(queue: str, count: int = 1) -> None: ...

    work.using(queue="slow").enqueue("a", count=7)
    assert_enqueued(work, queue="a", count=7)
    assert_enqueued(work.using(queue="slow"), queue="a")
    refute_enqueued(work.using(queue="fast"), queue="a")


def test_more_than_a_page_of_jobs(app: Holdfast) -> None:
    task = app.task(name="work")(lambda number: None)
    task.enqueue_many([{"number": number} for number in range(2500)])
    assert [job.args["number"] for job in enqueued(task)] == list(range(2500))
    assert_enqueued(task, 0, count=1)
    with pytest.raises(AssertionError, match="… and 2495 more"):
        assert_enqueued(task, -1)


@pytest.mark.parametrize(
    ("args", "match", "problem"),
    [
        ((), {"quue": "mail"}, "did you mean 'queue'"),
        ((), {"subjct": "hi"}, "did you mean 'subject'"),
        ((), {"ctx": None}, "unknown argument or option 'ctx'"),
        (("ada", "hi", "x"), {}, "takes at most 2 positional arguments, got 3"),
        (("ada",), {"to": "ada"}, "two values for the argument 'to'"),
        ((), {"delay": "soon"}, "delay must be a number"),
        ((), {"delay": (1, 2, 3)}, "the ends of a range"),
        ((), {"run_at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ((), {"status": "done"}, "status must be one of"),
        ((), {"count": -1}, "count must be 0 to"),
    ],
)
def test_a_mistake_in_the_assertion_is_not_an_assertion_error(
    mail: Task[..., Any], args: Any, match: Any, problem: str
) -> None:
    mail.enqueue("ada")
    with pytest.raises(InvalidInput, match=problem):
        assert_enqueued(mail, *args, **match)


def test_a_value_that_is_not_a_task_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match=r"must be a task, task\.using"):
        assert_enqueued(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="an app takes at most 0 positional arguments"):
        enqueued(app, "ada")
    with pytest.raises(InvalidInput, match="unknown argument or option 'count'"):
        refute_enqueued(app, count=3)


def test_a_failure_shows_the_closest_jobs_first_as_a_diff(mail: Task[..., Any], app: Holdfast) -> None:
    mail.enqueue("bob", "hello")
    mail.enqueue("eve", "hello", price=Money(3))
    mail.using(queue="urgent").enqueue("ada", "hello")
    app.jobs.cancel(1)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(mail, "ada", subject="bye", queue="urgent")
    expected = """
        no job of send_mail with to='ada', subject='bye', queue='urgent' was enqueued.
        Found 3 other jobs, closest match first (- expected, + found):

        job 3, ready on urgent, attempt 0 of 5
            to='ada'
          - subject='bye'
          + subject='hello'
            queue='urgent'

        job 2, ready on mail, attempt 0 of 5
          - to='ada'
          + to='eve'
          - subject='bye'
          + subject='hello'
            price={'amount': 3, 'currency': 'CHF'}
          - queue='urgent'
          + queue='mail'

        job 1, cancelled on mail, attempt 0 of 5
          - to='ada'
          + to='bob'
          - subject='bye'
          + subject='hello'
          - queue='urgent'
          + queue='mail'
        """
    assert str(caught.value) == dedent(expected).strip()


def test_times_are_readable_in_a_failure(mail: Task[..., Any]) -> None:
    mail.using(delay=60).enqueue("ada")
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(mail, delay=(0, 30), run_at=(noon, noon + timedelta(hours=1)))
    assert "- delay=(0, 30)\n  + delay=60.0" in str(caught.value)
    assert "- run_at=2030-01-01T12:00:00+00:00 to 2030-01-01T13:00:00+00:00\n  + run_at=20" in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "shown"),
    [("[1]", "args=[1]"), ("{", "args='(the stored payload cannot be decoded"), ('{"x": 1}', "x=1")],
)
def test_damaged_payloads_are_shown_and_do_not_match(
    mail: Task[..., Any], app: Holdfast, payload: str, shown: str
) -> None:
    app.store.jobs.insert(NewJob(queue="mail", task="send_mail", args=payload))
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(mail, "ada")
    assert shown in str(caught.value) and "  + to=(missing)" in str(caught.value)


def test_a_value_whose_repr_raises_does_not_hide_the_failure(mail: Task[..., Any]) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    mail.enqueue("ada")
    with pytest.raises(AssertionError, match=r"to=a .*Odd"):
        assert_enqueued(mail, Odd())


def test_the_database_of_the_tasks_own_app_is_searched(
    mail: Task[..., Any], open_app: Callable[..., Holdfast]
) -> None:
    mail.enqueue("ada")
    same = open_app().task(name="send_mail")(lambda to: None)
    assert_enqueued(same, "ada")
