"""`holdfast complete` and `fail`: end a job from outside, such as an external one that waits for somebody."""

import sys

import click

from ..errors import InvalidPayload
from ..process import Holdfast
from .complete import complete_unfinished
from .database import Database, takes_database
from .deeds import end
from .options import Signature, example, job_id, signed
from .output import json_option
from .send import parse

id_argument = click.argument("id", type=job_id, shell_complete=complete_unfinished)


@click.command(
    epilog=example(
        "holdfast complete 7 --db app.db",
        """holdfast complete 7 --result '{"approved": true}' --actor kim --db app.db""",
    )
)
@id_argument
@click.option("--result", metavar="JSON", help='What it results in; "-" reads it from standard input.')
@signed
@takes_database
@json_option
def complete(database: Database, id: int, result: str | None, signature: Signature, as_json: bool) -> None:
    """End a job as succeeded, from outside.

    An external one, which waits for somebody, or any other that has not ended. What a running attempt does after
    that is not recorded.
    """
    value = None if result is None else _parsed(result)
    with database.open() as app:
        done = app.jobs.complete(id, value, **signature)
        _say(app, id, done, as_json)


@click.command(
    epilog=example(
        "holdfast fail 7 REJECTED:BUDGET --db app.db",
        "holdfast fail 7 REJECTED:BUDGET --detail 'too much' --actor kim --db app.db",
    )
)
@id_argument
@click.argument("code")
@click.option("--detail", default="", metavar="TEXT", help="Kept with the job.")
@signed
@takes_database
@json_option
def fail(database: Database, id: int, code: str, detail: str, signature: Signature, as_json: bool) -> None:
    """End a job as failed, from outside.

    With an error code such as REJECTED:BUDGET, however many attempts it has left. It can be an external job, which
    waits for somebody, or any other that has not ended.
    """
    with database.open() as app:
        done = app.jobs.fail(id, code, detail, **signature)
        _say(app, id, done, as_json)


def _parsed(text: str) -> object:
    try:
        return parse(sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape"))
    except InvalidPayload as error:
        raise type(error)(f"--result: {error}") from None


def _say(app: Holdfast, id: int, done: bool, as_json: bool) -> None:
    status = app.jobs.get(id).status
    sentence = f"Job {id} has {status}." if done else f"Job {id} had ended already, as {status}: nothing has changed."
    end({"id": id, "status": status, "done": done}, sentence, done, as_json)
