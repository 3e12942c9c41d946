"""Values that Holdfast cannot accept: each is refused by name, with words that help, and nothing is stored."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, backoff, delays, fixed, linear
from holdfast.errors import HoldfastError, InvalidInput, InvalidTask, JobNotFound
from support.refusals import refused, told

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001


def a_task(app: Holdfast) -> Any:
    @app.task
    def work(n: int = 0) -> None: ...

    return work


@pytest.mark.parametrize("bad", [NAIVE, "2030-01-01T00:00:00Z", 1_900_000_000, None, NAIVE.date(), timedelta(1)])
def test_run_at_takes_an_aware_datetime_only(app: Holdfast, bad: Any) -> None:
    with refused(app, InvalidInput, "run_at", "datetime"):
        a_task(app).using(run_at=bad).enqueue()


def test_a_naive_run_at_is_told_how_to_get_a_time_zone(app: Holdfast) -> None:
    with refused(app, InvalidInput, "time zone", "timezone.utc"):
        a_task(app).using(run_at=NAIVE).enqueue()


@pytest.mark.parametrize("edge", [datetime.max, datetime.min])  # noqa: DTZ901
@pytest.mark.parametrize("hours", [-12, 12])
def test_a_run_at_at_the_end_of_all_time_is_refused_or_can_be_read_again(
    app: Holdfast, edge: datetime, hours: int
) -> None:
    """In UTC it may lie in the year 10000, which no datetime can say: then one job would break every listing."""
    try:
        a_task(app).using(run_at=edge.replace(tzinfo=timezone(timedelta(hours=hours)))).enqueue()
    except InvalidInput as error:
        assert "run_at" in str(error)
    assert len([job.run_at for job in app.jobs.list()]) <= 1


def test_delay_and_run_at_together_are_refused(app: Holdfast) -> None:
    later = datetime(2030, 1, 1, tzinfo=UTC)
    with refused(app, InvalidInput, "delay", "run_at"):
        a_task(app).using(delay=5, run_at=later).enqueue()
    with refused(app, InvalidInput, "delay", "run_at"):
        a_task(app).using(delay=5).using(run_at=later).enqueue()


def test_an_unknown_option_is_told_the_nearest_one(app: Holdfast) -> None:
    with refused(app, InvalidInput, "dealy", "did you mean 'delay'"):
        a_task(app).using(dealy=5).enqueue()
    with refused(app, InvalidInput, "max_attempt", "did you mean 'max_attempts'"):
        a_task(app).using(delay=5).using(max_attempt=5).enqueue()
    with refused(app, InvalidInput, "max_attempt", "did you mean 'max_attempts'"):
        app.task(max_attempt=5)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"on_conflict": "ignore"}, "replace"),
        ({"on_conflict": None}, "replace"),
        ({"key": ""}, "key"),
        ({"key": 5}, "key"),
        ({"key": "k" * 501}, "500"),
        ({"tags": []}, "tags"),
        ({"tags": [5]}, "tags"),
        ({"tags": ["fine", ""]}, "tag"),
        ({"tags": 5}, "tags"),
        ({"tags": ["t" * 201]}, "200"),
        ({"queue": ""}, "queue"),
        ({"queue": None}, "queue"),
    ],
)
def test_bad_options_of_an_enqueue_are_refused(app: Holdfast, options: dict[str, Any], word: str) -> None:
    with refused(app, InvalidInput, word):
        a_task(app).using(**options).enqueue()


def test_one_key_for_many_jobs_is_refused(app: Holdfast) -> None:
    with refused(app, InvalidInput, "key"):
        a_task(app).using(key="k").enqueue_many([{"n": 1}, {"n": 2}])


BAD_NAMES: list[Any] = [
    "",
    "q" * 201,
    "q" * 300,
    None,
    5,
    b"inbox",
    ["inbox"],
    "a\nb",
    "a\x00b",
    "\x1b[31m",
    "\ud800",
]


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_a_bad_queue_name_is_refused_everywhere(app: Holdfast, bad: Any) -> None:
    with refused(app, InvalidInput, "queue name"):
        app.queue(bad)
    with refused(app, InvalidInput, "queue name"):
        app.task(queue=bad)(lambda: None)
    with refused(app, InvalidInput, "queue name"):
        a_task(app).using(queue=bad).enqueue()


def test_a_queue_name_of_200_characters_is_fine(app: Holdfast) -> None:
    app.queue("q" * 200).send("x")
    assert app.queue("q" * 200).receive() is not None


@pytest.mark.parametrize("bad", [name for name in BAD_NAMES if name is not None])
def test_a_bad_task_name_is_refused(app: Holdfast, bad: Any) -> None:
    with refused(app, InvalidInput, "task name"):
        app.task(name=bad)(lambda: None)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        "bzEw!",
        "🙂",
        5,
        b"bzE",
        "bw",
        "bm9w",
        "b" * 400,
        "bzEuNQ",
        "by0x",
        "bzA",
        "bzE4NDQ2NzQ0MDczNzA5NTUxNjE2",
    ],
)
def test_a_cursor_that_list_did_not_give_is_refused(app: Holdfast, bad: Any) -> None:
    """Among them, in their base64: o, nop, o1.5, o-1, o0 and o18446744073709551616."""
    with told(InvalidInput, "cursor", "page.next"):
        app.jobs.list(cursor=bad)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"status": "done"}, ["done", "succeeded"]),
        ({"status": ["ready", "READY"]}, ["READY", "succeeded"]),
        ({"status": "new"}, ["new", "succeeded"]),
        ({"status": []}, ["status", "at least one"]),
        ({"status": 5}, ["status"]),
        ({"statuss": "ready"}, ["statuss", "status"]),
        ({"queue": 5}, ["queue", "text"]),
        ({"queue": ["inbox", None]}, ["queue", "text"]),
        ({"task": b"x"}, ["task", "text"]),
        ({"tag": ["\ud800", "x"]}, ["tag"]),
        ({"key": "\ud800"}, ["key"]),
        ({"created_after": NAIVE}, ["created_after", "time zone"]),
        ({"finished_before": "yesterday"}, ["finished_before", "datetime"]),
    ],
)
def test_a_bad_filter_is_refused_by_every_operation(app: Holdfast, filters: dict[str, Any], words: list[str]) -> None:
    app.queue("inbox").send("kept")
    for operation in (app.jobs.list, app.jobs.retry, app.jobs.cancel, app.jobs.run_now, app.jobs.delete):
        with refused(app, InvalidInput, *words):
            operation(**filters)
    assert app.queue("inbox").stats().ready == 1


@pytest.mark.parametrize("filters", [{}, {"queue": None}, {"status": None, "task": None}, {"created_after": None}])
def test_an_operation_on_all_jobs_needs_a_filter_that_says_so(app: Holdfast, filters: dict[str, Any]) -> None:
    """A filter of None comes from a variable that was not set: it must not delete everything."""
    app.queue("inbox").send("kept")
    for operation in (app.jobs.retry, app.jobs.cancel, app.jobs.run_now, app.jobs.delete):
        with refused(app, InvalidInput, "filter"):
            operation(**filters)
    assert app.queue("inbox").stats().ready == 1


def test_an_id_and_filters_together_are_refused(app: Holdfast) -> None:
    kept = app.queue("inbox").send("kept")
    with refused(app, InvalidInput, "not both"):
        app.jobs.delete(kept, status="ready")  # type: ignore[call-overload]


def test_operations_on_a_job_that_is_not_there_say_so(app: Holdfast) -> None:
    jobs = app.jobs
    for operation in (jobs.get, jobs.history, jobs.retry, jobs.cancel, jobs.run_now, jobs.delete):
        with told(JobNotFound, "4711", "deleted"):
            operation(4711)


NO_POLICY: list[Callable[[], object]] = [
    lambda: backoff(base=-1),
    lambda: backoff(cap=-1),
    lambda: backoff(factor=0.5),
    lambda: backoff(jitter=2),
    lambda: backoff(base=math.nan),
    lambda: backoff(base="10"),  # type: ignore[arg-type]
    lambda: linear(step=-1),
    lambda: linear(step=None),  # type: ignore[arg-type]
    lambda: fixed(-1),
    lambda: fixed("5"),  # type: ignore[arg-type]
    lambda: delays([]),
    lambda: delays([1, -1]),
    lambda: delays([1, math.nan]),
    lambda: delays(["1"]),  # type: ignore[list-item]
    lambda: delays(5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("policy", NO_POLICY, ids=range(len(NO_POLICY)))
def test_a_bad_retry_policy_is_refused(policy: Callable[[], object]) -> None:
    with told(InvalidInput, "retry policy"):
        policy()


@pytest.mark.parametrize("bad", ["often", True, object(), -1, [], [1, "2"], {}, math.nan])
def test_a_bad_retry_option_is_refused(app: Holdfast, bad: Any) -> None:
    with told(InvalidInput, "retry"):
        app.task(retry=bad)(lambda: None)


@pytest.mark.parametrize(
    "bad", ["", "stripe", "A B", "A:", ":B", "A:b", "A:B:C", "A" * 33, "A:" + "B" * 65, 5, "A\n"]
)
def test_a_bad_error_code_is_refused(app: Holdfast, bad: Any) -> None:
    with told(InvalidInput, "CATEGORY:SUBCATEGORY"):
        app.classify(ValueError, bad)


@pytest.mark.parametrize("bad", [ValueError("an instance"), "ValueError", int, None, msgspec])
def test_classify_takes_exception_types_only(app: Holdfast, bad: Any) -> None:
    with told(InvalidInput, "exception class"):
        app.classify(bad, "INTERNAL:X")


LONG = "x" * 100_000


REPEATS: list[Callable[[Any], object]] = [
    lambda app: app.jobs.list(cursor=LONG),
    lambda app: app.jobs.list(status=LONG),
    lambda app: app.jobs.list(queue=["a", LONG.encode()]),
    lambda app: app.jobs.list(**{LONG: 1}),
    lambda app: app.queue(LONG),
    lambda app: app.queue("a" * 100 + "\x00" * 100),
    lambda app: app.queue("q").send("x", delay=LONG),
    lambda app: app.classify(ValueError, LONG),
    lambda app: app.task(retry=LONG)(lambda: None),
    lambda app: app.task(LONG),
    lambda app: a_task(app).using(on_conflict=LONG),
    lambda app: a_task(app).using(run_at=LONG),
    lambda app: Holdfast("never.db", prefix=LONG),
    lambda app: Holdfast("never.db", durability=LONG),  # type: ignore[arg-type]
]


def test_a_refusal_does_not_repeat_the_whole_of_a_huge_value(app: Holdfast) -> None:
    lengths = []
    for call in REPEATS:
        with pytest.raises(HoldfastError) as caught:
            call(app)
        lengths.append(len(str(caught.value)))
    assert [length for length in lengths if length > 1500] == []


def test_every_refusal_is_a_holdfast_error_and_of_the_kind_python_programs_expect() -> None:
    assert issubclass(InvalidInput, (HoldfastError, ValueError))
    assert issubclass(InvalidTask, (HoldfastError, TypeError))
    assert issubclass(JobNotFound, (HoldfastError, LookupError))


class Mailer:
    """What people try with a class."""

    def by_name(self, to: str) -> None: ...

    def by_place(this, to: str) -> None: ...

    def without_arguments() -> None: ...  # type: ignore[misc]

    @classmethod
    def of_class(cls, to: str) -> None: ...

    @staticmethod
    def static(to: str) -> str:
        return to


@pytest.mark.parametrize(
    "method", [Mailer.by_name, Mailer.by_place, Mailer.without_arguments, Mailer.of_class, Mailer().by_name]
)
def test_a_method_is_refused_when_it_is_decorated(app: Holdfast, method: Any) -> None:
    with refused(app, InvalidTask, "is a method", "@staticmethod", method.__name__):
        app.task(method)


def test_a_function_whose_first_parameter_is_self_is_refused(app: Holdfast) -> None:
    def send(self: Any, to: str) -> None: ...

    with refused(app, InvalidTask, "is a method"):
        app.task(send)


def test_a_static_method_can_be_a_task(app: Holdfast) -> None:
    task = app.task(Mailer.__dict__["static"])
    assert task("ada") == "ada"
    assert task.enqueue("ada").args == {"to": "ada"}
