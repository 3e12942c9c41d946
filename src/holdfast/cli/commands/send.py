"""`holdfast send`: send a message or enqueue a job."""

import sys
from typing import Any

import click
import msgspec

from ...app.options import EnqueueOptions, checked
from ...codec import MAX_BYTES, decoder, encode
from ...errors import InvalidInput, InvalidPayload, PayloadTooLarge
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
        options = {name: one for name, one in given.items() if one is not None}
        if task is None:
            id, status = _send(app, queue, value, options)
        else:
            job = app.jobs.enqueue(task, _arguments(value), queue=queue, **options)  # type: ignore[arg-type]
            id, status = job.id, job.status if job.deduplicated else None
    if as_json:
        document({"id": id, "deduplicated": status is not None})
        return
    if status is not None:
        note(f"Nothing stored: job {id}, which is {status}, already has the key {key!r}")
    say(str(id))


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


def _send(app: Holdfast, queue: str, value: Any, options: dict[str, Any]) -> tuple[int, str | None]:
    """Send a message. Return its id, and the status of the message that already has the key."""
    fields = checked({"queue": queue, **options}, EnqueueOptions.__annotations__)
    inserted = app.store.jobs.insert(NewJob(task=None, args=encode(value).decode(), **fields))
    return inserted.id, None if inserted.existing is None else inserted.existing.status


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(
            f"""the arguments of a task must be a JSON object such as '{{"to": "ada"}}', got {_kind(value)}"""
        )
    return value


def _kind(value: Any) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
