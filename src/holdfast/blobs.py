"""Large payloads and results, kept by reference: what keeps them, and how they are named. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from .errors import BlobMissing
from .failure import shorten

LARGE_BYTES = 64 * 1024
LARGEST_INLINE_BYTES = 1024 * 1024
PLACEHOLDER = "null"  # stands in the row instead
_NAME = re.compile(r"[0-9a-f]{64}")


class BlobStore(Protocol):
    """Keeps bytes by name. Its methods are called from several threads, and from several processes at a time."""

    def put(self, name: str, data: bytes) -> None:
        """Keep it. When this returns it survives whatever the database survives.

        The name is the SHA-256 of the data, so what has the name already is the same.
        """
        ...

    def get(self, name: str) -> bytes:
        """Raises BlobMissing, or another LookupError, where there is none."""
        ...

    def delete(self, name: str) -> None:
        """Nothing refers to it any more. No error where there is none."""
        ...


@runtime_checkable
class ListedBlobs(BlobStore, Protocol):
    """One that can say what it has: so what a crash left there is found, and what is missing without reading it."""

    @property
    def places(self) -> int:
        """So many parts it has, from 0, each of which is listed by itself."""
        ...

    def has(self, name: str) -> bool: ...

    def unchanged_for(self, seconds: float, place: int) -> Iterator[str]:
        """The names in one part, of those that nobody has put for so long."""
        ...


class BlobReference(Struct, frozen=True):
    """What a job refers to."""

    name: str
    job_id: int
    what: Literal["payload", "result"]


def name_of(data: bytes) -> str:
    import hashlib  # here, since few programs need it

    return hashlib.sha256(data).hexdigest()


def is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def require_name(name: Any) -> str:
    """What a row has as a name came from anybody who can write to the database."""
    if not is_name(name):
        raise BlobMissing(f"{shorten(repr(name), 100)} is not the name of a blob: somebody wrote it by hand")
    return str(name)


def is_reference(inline: bytes | None, name: str | None) -> bool:
    """Whether the name counts: what somebody has put in its place by hand does, and the name does not."""
    return name is not None and inline == PLACEHOLDER.encode()
