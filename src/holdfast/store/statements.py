"""SQL lives in files, each statement below a line `-- name: …`; this reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Statements:
    """The named statements of a folder, as attributes, with the table prefix put in."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.__dict__.update(_named(folder, prefix))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


@lru_cache(maxsize=4)  # a program opens several databases with one prefix, or one database several times
def _named(folder: Path, prefix: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for file in sorted(folder.glob("*.sql")):
        head, *blocks = _NAME.split(file.read_text(encoding="utf-8"))
        assert not [line for line in head.splitlines() if line and not line.startswith("--")], file
        for name, text in zip(blocks[::2], blocks[1::2], strict=True):
            assert name not in named, f"{name} is defined twice"
            named[name] = with_prefix(text, prefix)
    return named


def with_prefix(text: str, prefix: str) -> str:
    """Strip comments and blank lines, and put the (checked) prefix where `{p}` stands."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";").replace("{p}", prefix)


def as_json(values: Any) -> str:
    """For a bound value that a statement reads with json_each."""
    return msgspec.json.encode(values).decode()


T = TypeVar("T")


class SharedDatabase(Protocol):
    """Runs work on a connection, which executes named statements."""

    def read(self, work: Callable[[Any], T]) -> T: ...

    def read_snapshot(self, work: Callable[[Any], T]) -> T:
        """Run reads that all see the same moment."""
        ...

    def run(self, work: Callable[[Any], T], *, durable: bool = False) -> T:
        """Run it in a transaction that is committed when this returns; durable: and on the disk."""
        ...
