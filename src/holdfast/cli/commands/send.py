"""`holdfast send`: send a message or enqueue a job."""

import sys
from typing import Any

import click
import msgspec

from ... import validate
from ...app.options import EnqueueOptions, checked
from ...codec import MAX_BYTES, decoder, encode
from ...errors import InvalidArguments, InvalidInput, InvalidPayload, PayloadTooLarge
from ...failure import shorten
from ...model.job import DEFAULT_MAX_ATTEMPTS, NewJob
from ...supervisor import Holdfast
from ..options import DatabaseOption, complete_queues, complete_tasks, delay_option, duration, example, read_options
from ..output import document, note, say

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
@click.option(
    "--task", metavar="NAME", shell_complete=complete_tasks, help="Enqueue a job of this task instead of a message."
)
@delay_option
@click.option("--priority", type=int, metavar="N", help="Higher priorities run first.  [default: 0]")
@click.option("--key", metavar="TEXT", help="If an unfinished job has this key, store nothing and print its id.")
@click.option(
    "--max-attempts",
    type=int,
    metavar="N",
    help=f"Attempts before it fails for good.  [default: {DEFAULT_MAX_ATTEMPTS}]",
)
@click.option(
    "--expires",
    type=duration,
    metavar="DURATION",
    help="Cancel the job if it has not started 10s, 5m, 1h, … from now.",
)
@click.option("--create", is_flag=True, help="Create the database if it does not exist.")
@read_options
def send(
    database: DatabaseOption,
    queue: str,
    json: str,
    task: str | None,
    delay: float,
    priority: int | None,
    key: str | None,
    max_attempts: int | None,
    expires: float | None,
    create: bool,
    as_json: bool,
) -> None:
    """Send JSON to a queue and print the id. "-" reads the JSON from standard input.

    With --task, the JSON is an object with the arguments of that task. They are checked only with --app: without the
    app, the command does not know the task's signature. With --app, priority, attempts and timeout default to the
    task's own. The job is on disk when the command exits.
    """
    data = sys.stdin.buffer.read() if json == "-" else json.encode("utf-8", "surrogateescape")
    value = parse(data)
    with database.open(migrate=create) as app:
        given = {"delay": delay, "priority": priority, "key": key, "max_attempts": max_attempts, "expires": expires}
        new = _new_job(app, queue, task, value, {name: one for name, one in given.items() if one is not None})
        inserted = app.store.jobs.insert(new)
    if as_json:
        document({"id": inserted.id, "deduplicated": inserted.existing is not None})
        return
    if inserted.existing is not None:
        note(f"Nothing stored: job {inserted.id}, which is {inserted.existing.status}, already has the key {key!r}")
    say(str(inserted.id))


def parse(data: bytes) -> Any:
    """Decode the JSON. Errors are the codec's, with a hint about quotes in the shell."""
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        problem = shorten(str(error))
        if len(data) > MAX_BYTES:
            raise PayloadTooLarge(f"{problem}: store it elsewhere and pass a reference") from None
        is_text = "malformed" in problem or "truncated" in problem
        hint = """. A JSON string needs its own quotes, such as '"hello"'""" if is_text else ""
        raise InvalidPayload(f"invalid JSON: {problem}{hint}") from None


def _new_job(app: Holdfast, queue: str, task: str | None, value: Any, given: dict[str, Any]) -> NewJob:
    """Return the job, with the options of the task if the app has it."""
    known = app.tasks.get(task or "")
    if task is not None and known is None and app.tasks:
        raise validate.suggest(task, app.tasks, "task")
    options = checked({"queue": queue, **given}, EnqueueOptions.__annotations__)
    if known is not None:
        options = known.job_options | options
    name = None if task is None else validate.name(task, "task name")
    return NewJob(task=name, args=_encoded(app, task, value), **options)


def _encoded(app: Holdfast, task: str | None, value: Any) -> str:
    data = encode(value)
    if task is None:
        return data.decode()
    if not isinstance(value, dict):
        raise InvalidInput(
            f"""the arguments of a task must be a JSON object such as '{{"to": "ada"}}', got {_kind(value)}"""
        )
    known = app.tasks.get(task)
    if known is not None:
        try:
            known.signature.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidArguments(
                f"{task}: the arguments do not match its signature: {shorten(str(error))}"
            ) from None
    return data.decode()


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
