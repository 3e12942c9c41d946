"""Changes made with a command are logged with actor and reason."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.cli import main

Run = Callable[..., Result]

BY = ("--actor", "kim", "--reason", "ticket 4711")

# They look; or they are the program's own work: to send, and to run what was sent.
UNSIGNED = {
    *("batches", "batch", "batch show", "inbox", "operations", "operation", "operation show"),
    "operation run",  # continues in the name of its actor
    *("completion", "cron", "events", "explain", "failures", "health", "jobs", "queues", "show", "stats", "workers"),
    *("web", "web-user", "web-user add", "web-user list", "web-user remove", "web-user token"),  # not of a database
    *("send", "worker"),
}


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_command_that_makes_changes_takes_actor_and_reason() -> None:
    options = {path: {option for one in command.params for option in one.opts} for path, command in commands()}
    assert {path for path, given in options.items() if not {"--actor", "--reason"} <= given} == UNSIGNED


def last_of(app: Holdfast, event: str) -> tuple[str | None, Any]:
    found = [one for one in app.observe.events(limit=1000) if one.event == event]
    return found[-1].actor, found[-1].detail.get("reason")


@pytest.mark.parametrize(("verb", "event"), [("pause", "paused"), ("resume", "resumed"), ("remove", "removed")])
def test_schedule_changes_are_logged_with_the_reason(app: Holdfast, on: Run, verb: str, event: str) -> None:
    app.task(name="tidy")(lambda: None)
    app.schedules.add("nightly", "@daily", "tidy")
    if verb == "resume":
        app.schedules.pause("nightly")
    assert on("cron", verb, "nightly", *BY).exit_code == 0
    assert last_of(app, f"schedule_{event}") == ("kim", "ticket 4711")


@pytest.mark.parametrize(("command", "event"), [(["complete"], "completed"), (["fail", "REJECTED:BUDGET"], "failed")])
def test_complete_and_fail_are_logged_with_the_reason(app: Holdfast, on: Run, command: list[str], event: str) -> None:
    job = app.external("approval")
    name, *rest = command
    assert on(name, job.id, *rest, *BY).exit_code == 0
    assert last_of(app, event) == ("kim", "ticket 4711")


def test_a_migration_is_logged_with_its_actor(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    assert run("migrate", "--create", "--db", path, "--actor", "").exit_code == 2 and not path.exists()
    assert run("migrate", "--create", "--db", path, *BY).exit_code == 0
    assert run("migrate", "--db", path, *BY).exit_code == 0, "with nothing to do, and so nothing to tell"
    with Holdfast(path) as app:
        (one,) = app.observe.events()
        assert (one.event, one.actor) == ("migrated", "kim")
        assert one.detail == {"created": True, "reason": "ticket 4711"}
