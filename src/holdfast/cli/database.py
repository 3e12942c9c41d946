"""Which database a command works on: `--db URL`, `--app module:app`, or HOLDFAST_URL."""

from __future__ import annotations  # so that they cost nothing at import

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from ..process import Holdfast

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_PREFIX = "holdfast_"


class Database:
    """What the options say. A group's options hold for its commands, unless these have their own."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx

    @property
    def url(self) -> str | None:
        """As it was given, for messages; None with `--app`."""
        url = _given(self._ctx, "db")
        return url or (None if _given(self._ctx, "reference") else os.environ.get("HOLDFAST_URL") or None)

    def place(self) -> tuple[str, str] | None:
        """The URL and the prefix, to look at what may be in any state; None with `--app`, which has its own."""
        if _given(self._ctx, "reference") is not None:
            return None
        if self.url is None:
            raise click.UsageError("no database was named: pass --db app.db, or set HOLDFAST_URL", self._ctx)
        return self.url, _given(self._ctx, "prefix") or DEFAULT_PREFIX

    def open(self, *, migrate: bool = False, **options: Any) -> Holdfast:
        """Without `migrate`, no file is made and no table is changed."""
        reference, prefix = _given(self._ctx, "reference"), _given(self._ctx, "prefix")
        if reference is not None:
            if _given(self._ctx, "db") is not None:
                raise click.UsageError("--db and --app both name a database: pass one of them", self._ctx)
            if prefix is not None:
                raise click.UsageError("an app has its own prefix: --prefix goes with --db", self._ctx)
            from ..process.load import load_app

            return load_app(reference)
        if self.url is None:
            raise click.UsageError("no database was named: pass --db app.db, or set HOLDFAST_URL", self._ctx)
        from ..process import Holdfast

        return Holdfast(self.url, migrate=migrate, prefix=prefix or DEFAULT_PREFIX, **options)


def _given(ctx: click.Context | None, name: str) -> str | None:
    while ctx is not None:
        value = ctx.params.get(name)
        if value is not None:
            return cast(str, value)
        ctx = ctx.parent
    return None


def takes_database(command: F) -> F:
    """Adds the options, and passes a Database as the first argument."""

    @click.option(
        "--db", type=click.Path(), metavar="URL", help="The database, a path or a URL.  [default: $HOLDFAST_URL]"
    )
    @click.option("--app", "reference", metavar="MODULE:APP", help="Use the database of this app instead.")
    @click.option("--prefix", metavar="TEXT", help=f"How the tables' names begin.  [default: {DEFAULT_PREFIX}]")
    @functools.wraps(command)
    def with_database(*, db: str | None, reference: str | None, prefix: str | None, **given: Any) -> Any:
        del db, reference, prefix  # taken from the context, where those of the group are too
        return command(Database(click.get_current_context()), **given)

    return cast(F, with_database)
