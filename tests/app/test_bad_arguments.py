"""Arguments that do not fit the task, and functions that cannot be one."""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct

from holdfast import Context, Holdfast
from holdfast.errors import InvalidArguments, InvalidInput, InvalidPayload, InvalidTask
from support.refusals import refused, stored, told


class Colour(Enum):
    RED = "red"


class Order(Struct):
    id: int
    lines: list[str] = []


@dataclass
class Point:
    x: int
    y: int


class Widget:
    """Nothing that JSON knows."""


def send_mail(to: str, subject: str = "hi", *, urgent: bool = False, times: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, ["send_mail", "to"]),
        ((), {"subject": "hi"}, ["to"]),
        (("ada",), {"too": "bob"}, ["unknown argument 'too'; did you mean 'to'?"]),
        (("ada", "hi", True), {}, ["too many", "subject"]),
        (("ada",), {"to": "bob"}, ["to", "multiple"]),
        ((), {"to": "ada", "Subject": "hi"}, ["unknown argument 'Subject'; did you mean 'subject'?"]),
        (("ada",), {"delay": 5}, ["pass options with send_mail.using(delay=…).enqueue(…)"]),
        ((5,), {}, ["argument 'to' has the wrong type: expected `str`, got `int`"]),
        ((None,), {}, ["to", "str"]),
        ((["ada"],), {}, ["to", "str"]),
        (({"to": "ada"},), {}, ["to", "str"]),
        (("ada",), {"urgent": "yes"}, ["urgent", "bool"]),
        (("ada",), {"urgent": 1}, ["urgent", "bool"]),
        (("ada",), {"times": "3"}, ["times", "int"]),
        (("ada",), {"times": 1.5}, ["times", "int"]),
        (("ada",), {"times": True}, ["times", "int"]),
        (("ada",), {"times": None}, ["times", "int"]),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_named(
    app: Holdfast, args: tuple[Any, ...], kwargs: dict[str, Any], words: list[str]
) -> None:
    task: Any = app.task(send_mail)
    with refused(app, InvalidArguments, "send_mail", *words):
        task.enqueue(*args, **kwargs)
    with refused(app, InvalidArguments, "send_mail", *words):
        asyncio.run(task.aenqueue(*args, **kwargs))
    if not args:
        with refused(app, InvalidArguments, "send_mail", *words):
            task.enqueue_many([{"to": "fine"}, kwargs])


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        (str, b"bytes"),
        (str, UUID(int=1)),
        (str, Path("/tmp")),
        (str, Decimal("1.5")),
        (str, datetime(2030, 1, 1, tzinfo=UTC)),
        (str, Colour.RED),
        (bytes, "not base64!"),
        (int, "5"),
        (float, "1.5"),
        (bool, 0),
        (datetime, "yesterday"),
        (datetime, 1_900_000_000),
        (UUID, "not-a-uuid"),
        (Decimal, "one"),
        (Colour, "green"),
        (Path, 5),
        (Order, {"id": "x"}),
        (Order, {}),
        (Point, {"x": 1}),
        (list[int], [1, "2"]),
        (list[int], "12"),
        (dict[str, int], {"a": "b"}),
        (dict[int, int], {"a": 1}),
        (tuple[int, str], (1, "a", "b")),
        (int | None, "5"),
        (Widget, {}),
        (list[Widget], [1]),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(app: Holdfast, wanted: Any, given: Any) -> None:
    """Also where JSON would make the right type of it on the way, and the task would get another value."""

    def work(value: Any) -> None: ...

    work.__annotations__["value"] = wanted
    with pytest.raises((InvalidArguments, InvalidTask, InvalidPayload)):
        app.task(work).enqueue(given)
    assert stored(app) == []


def test_one_call_that_does_not_fit_keeps_thousands_out(app: Holdfast) -> None:
    task: Any = app.task(send_mail)
    calls: list[Any] = [{"to": "ada"}] * 1500
    with refused(app, InvalidArguments, "to"):
        task.enqueue_many([*calls, {"to": 5}])
    with refused(app, InvalidArguments, "mapping"):
        task.enqueue_many([*calls, ("ada", "hi")])
    with refused(app, InvalidArguments, "strings"):
        task.enqueue_many([{5: "ada"}])


def test_a_call_that_is_no_mapping_does_not_show_its_content_in_the_error(app: Holdfast) -> None:
    with pytest.raises(InvalidArguments) as caught:
        app.task(send_mail).enqueue_many(["the secret"])  # type: ignore[list-item]
    assert "the secret" not in str(caught.value)


def test_a_wrong_argument_does_not_show_its_value_in_the_error(app: Holdfast) -> None:
    task: Any = app.task(send_mail)
    for arguments in (
        {"to": ["the secret"]},
        {"to": "ada", "times": "the secret"},
        {"to": "a", "word": "the secret"},
    ):
        with pytest.raises(InvalidArguments) as caught:
            task.enqueue(**arguments)
        assert "the secret" not in str(caught.value)


def test_a_context_is_not_the_callers_to_pass(app: Holdfast) -> None:
    @app.task
    def work(ctx: Context, n: int) -> None: ...

    call: Any = work.enqueue
    with refused(app, InvalidArguments, "ctx"):
        call(ctx=Context(), n=1)
    with refused(app, InvalidArguments, "too many"):
        call(Context(), 1)


# --- functions that cannot be tasks ---------------------------------------------------------------


def takes_any(*args: int) -> None: ...
def takes_keywords(**kwargs: int) -> None: ...
def takes_both(to: str, *rest: str, **more: str) -> None: ...


@pytest.mark.parametrize("function", [takes_any, takes_keywords, takes_both])
def test_a_task_with_unnamed_parameters_is_refused(app: Holdfast, function: Callable[..., None]) -> None:
    with told(InvalidTask, function.__name__, "names", "list or a dict"):
        app.task(function)
    assert app.tasks == {}


@pytest.mark.parametrize(
    "function",
    [5, "send_mail", object(), functools.partial(send_mail, "ada"), int, dict, Widget, print, max],
)
def test_what_is_no_function_with_a_signature_is_no_task(app: Holdfast, function: Any) -> None:
    with told(InvalidTask):
        app.task(function)
    assert app.tasks == {}


def test_a_lambda_needs_a_name(app: Holdfast) -> None:
    with told(InvalidTask, "lambda", "name="):
        app.task(lambda: None)
    assert app.task(name="nothing")(lambda: None).name == "nothing"


def test_the_queues_of_a_worker_must_be_names(app: Holdfast) -> None:
    app.task(send_mail)
    with told(InvalidInput, "queues must be text, a list or a dict", "got 5"):
        app.worker(queues=5)  # type: ignore[arg-type]


def test_an_annotation_that_json_cannot_give_back_is_refused_with_the_task(app: Holdfast) -> None:
    def work(value: Any) -> None: ...

    for wanted in (Widget, list[Widget], Callable[[], None], int | Widget, Order | Point):
        work.__annotations__["value"] = wanted
        with told(InvalidTask, "work"):
            app.task(work)


def test_an_annotation_that_is_never_defined_is_refused_with_the_first_enqueue(app: Holdfast) -> None:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = "NoSuchType"
    task = app.task(work)
    with pytest.raises(InvalidTask, match=r"NoSuchType.*TYPE_CHECKING"):
        task.enqueue(5)
    assert stored(app) == []


def _two_of_a_name() -> tuple[Callable[[], None], Callable[[], None]]:
    def work() -> None: ...

    first = work

    def elsewhere() -> Callable[[], None]:
        def work() -> None: ...

        return work

    return first, elsewhere()


def test_two_tasks_of_one_name_are_refused(app: Holdfast) -> None:
    first, second = _two_of_a_name()
    task = app.task(first)
    with told(InvalidTask, "'work'", "taken", "name="):
        app.task(second)
    with told(InvalidTask, "taken"):
        app.task(name="work")(send_mail)
    assert app.tasks["work"] is task


def test_a_function_may_be_registered_again_as_a_reload_does(app: Holdfast) -> None:
    app.task(send_mail)
    app.task(send_mail).enqueue("ada")
    assert len(stored(app)) == 1


def test_a_connection_cannot_follow_aenqueue_into_its_thread(app: Holdfast) -> None:
    task = app.task(send_mail)
    with refused(app, InvalidInput, "conn"), app.transaction() as tx:
        asyncio.run(task.using(conn=tx).aenqueue("ada"))
