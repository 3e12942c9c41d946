"""Read SQL statements from files, where each statement follows a line `-- name: …`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Statements:
    """The named statements in a folder, as attributes, with the table prefix filled in."""

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
    """Strip comments and blank lines, and replace `{p}` by the prefix, which was validated before."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";").replace("{p}", prefix)


def as_json(values: Any) -> str:
    """Encode a bound value that a statement reads with json_each."""
    return msgspec.json.encode(values).decode()
