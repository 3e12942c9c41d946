"""`holdfast send`: a message, or a job of a task, from a shell."""

import sys
from typing import Any

import click
import msgspec

from ... import validate
from ...app.options import EnqueueOptions, checked
from ...codec import MAX_BYTES, decoder, encode
from ...errors import InvalidArguments, InvalidInput, InvalidPayload, PayloadTooLarge
from ...failure import shorten
from ...model.job import Inserted, NewJob
from ...supervisor import Holdfast
from ..options import DatabaseOption, complete_queues, complete_tasks, duration, example, takes_database
from ..output import document, json_option, note, say

MESSAGE_ATTEMPTS = 3
_decode = decoder(Any)


@click.command(
    epilog=example(
        """holdfast send inbox '{"text": "hello"}' --db app.db""",
        """holdfast send mail '{"to": "ada@example.org"}' --task send_mail --db app.db""",
        "cat order.json | holdfast send orders - --key order-17 --db app.db",
    )
)
@click.argument("queue", shell_complete=complete_queues)
@click.argument("json")
@click.option("--task", metavar="NAME", shell_complete=complete_tasks, help="A job of this task, not a message.")
@click.option("--delay", type=duration, default="0s", metavar="DURATION", help="Not before 10s, 5m, 1h, … from now.")
@click.option("--priority", type=int, metavar="N", help="Higher ones first.  [default: 0]")
@click.option("--key", metavar="TEXT", help="Store nothing new if an unfinished one has this key.")
@click.option("--max-attempts", type=int, metavar="N", help="[default: 3, with --task 5]")
@click.option("--create", is_flag=True, help="Make the database if there is none.")
@takes_database
@json_option
def send(
    database: DatabaseOption,
    queue: str,
    json: str,
    task: str | None,
    delay: float,
    priority: int | None,
    key: str | None,
    max_attempts: int | None,
    create: bool,
    as_json: bool,
) -> None:
    """Send the JSON to the queue and print the id. "-" reads the JSON from standard input.

    With --task, it is an object of arguments for that task. They are checked only with --app: a bare database
    does not know the task.
    """
    data = sys.stdin.buffer.read() if json == "-" else json.encode("utf-8", "surrogateescape")
    value = parse(data)
    with database.open(migrate=create) as app:
        given = {"delay": delay, "priority": priority, "key": key, "max_attempts": max_attempts}
        new = _new_job(app, queue, task, value, {name: one for name, one in given.items() if one is not None})
        inserted = app.store.jobs.insert(new)
    if as_json:
        document({"id": inserted.id, "deduplicated": inserted.existing is not None})
        return
    if inserted.existing is not None:
        note(_explain(inserted, key))
    say(str(inserted.id))


def parse(data: bytes) -> Any:
    """The JSON as a value. Errors are those of the codec, with a word about the shell's quotes."""
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        problem = shorten(str(error))
        if len(data) > MAX_BYTES:
            raise PayloadTooLarge(f"{problem}: store it elsewhere and pass a reference") from None
        is_text = "malformed" in problem or "truncated" in problem
        hint = """. Text has quotes of its own, such as '"hello"'""" if is_text else ""
        raise InvalidPayload(f"this is no JSON that can be stored: {problem}{hint}") from None


def _new_job(app: Holdfast, queue: str, task: str | None, value: Any, given: dict[str, Any]) -> NewJob:
    """Return the job, with the options of the task if the app has it."""
    known = app.tasks.get(task or "")
    if task is not None and known is None and app.tasks:
        raise validate.suggest(task, app.tasks, "task")
    options = checked({"queue": queue, **given}, EnqueueOptions.__annotations__)
    if known is not None:
        options = known.job_options | options
    elif task is None:
        options.setdefault("max_attempts", MESSAGE_ATTEMPTS)
    name = None if task is None else validate.name(task, "task name")
    return NewJob(task=name, args=_encoded(app, task, value), **options)


def _encoded(app: Holdfast, task: str | None, value: Any) -> str:
    data = encode(value)
    if task is None:
        return data.decode()
    if not isinstance(value, dict):
        raise InvalidInput(
            f"""the arguments of a task are a JSON object, such as '{{"to": "ada"}}', not {_kind(value)}"""
        )
    known = app.tasks.get(task)
    if known is not None:
        try:
            known.signature.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidArguments(f"{task}: the arguments do not fit: {shorten(str(error))}") from None
    return data.decode()


def _kind(value: Any) -> str:
    return {list: "an array", str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _explain(inserted: Inserted, key: str | None) -> str:
    assert inserted.existing is not None
    return f"nothing new was stored: job {inserted.id}, which is {inserted.existing.status}, has the key {key!r}"
