"""`holdfast web`: serve the web page and the HTTP API. `holdfast web-user`: who may use them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ...errors import InvalidInput
from ..options import DatabaseOption, database_options, example, web_options
from ..output import Column, document, note, say, table

if TYPE_CHECKING:
    from ...supervisor import Holdfast
    from ...supervisor.worker_command import WorkerSettings
    from ...web.auth import Users
    from ...web.server import WebServer

ROLES = ("viewer", "operator", "admin")
auth_option = click.option(
    "--auth", "path", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="The users file."
)


@click.command(
    epilog=example(
        "holdfast web --db app.db",
        "holdfast web --app myproject.jobs:app --port 8080",
        "holdfast web --db app.db --host 0.0.0.0 --auth users.json --hide-args",
    )
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8520, show_default=True, metavar="PORT",
    help="Port to listen on; 0 picks a free one.",
)  # fmt: skip
@web_options()
@database_options
def web(database: DatabaseOption, port: int, **options: Any) -> None:
    """Serve the web page and the HTTP API until Ctrl-C.

    Only this machine can connect, unless --host names another address and --auth a users file. With --app, the page
    knows the tasks and checks the arguments of jobs that are enqueued from it.
    """
    require_extra()
    check_options(**options)
    with database.open() as app:
        server = make_server(app, port, **options)
        say(f"Serving {server.url} (Ctrl-C stops it)")
        sys.stdout.flush()
        server.run()


def serve_from_worker(app: Holdfast, settings: WorkerSettings) -> WebServer:
    """Start the server of `holdfast worker --web-port` in a thread."""
    return make_server(app, settings.web_port or 0, **settings.web_options).start()


def check_options(host: str, auth: str | None, redact: Iterable[str], **others: Any) -> Users | None:
    """Return the users. Raises for what is wrong before anything is served."""
    from ...web.auth import Users
    from ...web.server import require_authentication

    del others
    users = None if auth is None else Users(auth)
    require_authentication(host, users)
    if users is not None:
        users.read()
    for pattern in redact:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidInput(f"--redact {pattern!r} is no regular expression: {error}") from None
    return users


def make_server(app: Holdfast, port: int, host: str, allow_host: Iterable[str], **options: Any) -> WebServer:
    """Return a server of the page of this app, with the options of `web_options`."""
    from ...web.auth import LOOPBACK_NAMES
    from ...web.server import WebServer, is_loopback

    users = check_options(host, **options)
    is_known = bool(allow_host) or is_loopback(host)
    hosts = (*allow_host, host, *LOOPBACK_NAMES) if is_known else None
    return WebServer(app.web(**options | {"auth": users, "hosts": hosts}), host, port)


def require_extra() -> None:
    """Raise InvalidInput if the packages of the web extra are not installed."""
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the web page needs {error.name}: pip install 'holdfast[web]'") from None
    del starlette, uvicorn


@click.group(
    "web-user",
    epilog=example(
        "holdfast web-user add ada --role operator --auth users.json",
        "holdfast web-user token deploy --auth users.json",
    ),
)
def web_user() -> None:
    """Manage the users file of `holdfast web --auth`. It stores hashes, no passwords and no tokens."""


def _users(path: str) -> Users:
    require_extra()
    from ...web.auth import Users

    return Users(path)


@web_user.command(epilog=example("holdfast web-user add ada --role operator --auth users.json"))
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True, help="What the user may do.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@auth_option
def add(path: str, name: str, role: str, password_stdin: bool) -> None:
    """Add a user, or change the password and role of one. Asks for the password."""
    users = _users(path)
    from ...web.auth import User, hash_password, identity

    identity(name, role)
    text = sys.stdin.readline().rstrip("\n") if password_stdin else _ask_password()
    hashed = hash_password(text)
    with users.edit() as found:
        known = found.get(name)
        found[name] = User(role, hashed, {} if known is None else known.tokens)
    say(f"{name} is {'an' if role[0] in 'ao' else 'a'} {role}.")


def _ask_password() -> str:
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask for the password: pass --password-stdin and write it to standard input"
        )
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


@web_user.command(epilog=example("holdfast web-user token deploy --role operator --auth users.json"))
@click.argument("name")
@click.option("--label", default="default", show_default=True, metavar="TEXT", help="Name of the token.")
@click.option("--role", type=click.Choice(ROLES), help="Role of a new user.  [default: viewer]")
@auth_option
def token(path: str, name: str, label: str, role: str | None) -> None:
    """Make a token for the HTTP API, and print it once. A token with the same label is replaced."""
    users = _users(path)
    from ...web.auth import User, identity, new_token, token_hash

    made = new_token()
    with users.edit() as found:
        known = found.get(name)
        if known is not None and role is not None and known.role != role:
            raise InvalidInput(f"{name} is {known.role}: change the role with holdfast web-user add")
        user = known or User(identity(name, role or "viewer").role.name)
        found[name] = User(user.role, user.password, {**user.tokens, label: token_hash(made)})
    note("The token is shown only now. Send it as: Authorization: Bearer TOKEN")
    say(made)


@web_user.command("list", epilog=example("holdfast web-user list --auth users.json"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@auth_option
def list_users(path: str, as_json: bool) -> None:
    """List the users with their roles and the labels of their tokens."""
    found = _users(path).read()
    if as_json:
        users = [
            {"name": name, "role": user.role, "password": user.password is not None, "tokens": sorted(user.tokens)}
            for name, user in sorted(found.items())
        ]
        document({"users": users})
        return
    columns = (Column("NAME", least=8), Column("ROLE"), Column("PASSWORD"), Column("TOKENS", least=8))
    rows = [
        (name, user.role, "no" if user.password is None else "yes", ", ".join(sorted(user.tokens)))
        for name, user in sorted(found.items())
    ]
    table(columns, rows)


@web_user.command(epilog=example("holdfast web-user remove ada --auth users.json"))
@click.argument("name")
@click.option("--label", metavar="TEXT", help="Remove only this token.")
@auth_option
def remove(path: str, name: str, label: str | None) -> None:
    """Remove a user, or one token. A running server refuses them at once."""
    users = _users(path)
    from ...web.auth import User

    with users.edit() as found:
        user = found.get(name)
        if user is None or (label is not None and label not in user.tokens):
            raise InvalidInput(
                f"{path} has no {'user' if user is None else 'token'} {name if user is None else label}"
            )
        if label is None:
            del found[name]
        else:
            rest = {known: value for known, value in user.tokens.items() if known != label}
            found[name] = User(user.role, user.password, rest)
    say(f"Removed {name}." if label is None else f"Removed the token {label} of {name}.")
