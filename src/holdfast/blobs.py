"""The interface of a blob store, which holds large payloads and results, and how blobs are named. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from .errors import BlobMissing
from .failure import shorten

LARGE_BYTES = 64 * 1024
LARGEST_INLINE_BYTES = 1024 * 1024
PLACEHOLDER = "null"  # stored in the row in place of the payload or result
_NAME = re.compile(r"[0-9a-f]{64}")


class BlobStore(Protocol):
    """Stores bytes by name. Its methods are called from several threads and several processes at a time."""

    def put(self, name: str, data: bytes) -> None:
        """Store the data. Once this returns, it must be as durable as the database.

        The name is the SHA-256 of the data, so a blob of the same name has the same content.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return the data. Raises BlobMissing or another LookupError if there is no such blob."""
        ...

    def delete(self, name: str) -> None:
        """Delete the blob, which no job refers to any more. Does nothing if there is no such blob."""
        ...


@runtime_checkable
class ListableBlobStore(BlobStore, Protocol):
    """A blob store that can list its blobs.

    Holdfast then deletes blobs that a crash left without a job, and finds missing ones without reading them.
    """

    @property
    def partitions(self) -> int:
        """The number of partitions. Each of them, from 0, is listed separately."""
        ...

    def has(self, name: str) -> bool: ...

    def older_than(self, seconds: float, partition: int) -> Iterator[str]:
        """List the names in one partition that were last put more than `seconds` ago."""
        ...


class BlobReference(Struct, frozen=True):
    """A blob that a job refers to, as its payload or its result."""

    name: str
    job_id: int
    what: Literal["payload", "result"]


def name_of(data: bytes) -> str:
    import hashlib  # imported here: few programs need it

    return hashlib.sha256(data).hexdigest()


def is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def require_name(name: Any) -> str:
    """Check a name read from the database, where plain SQL may have stored anything."""
    if not is_name(name):
        raise BlobMissing(f"{shorten(repr(name), 100)} is not the name of a blob: the row was edited by hand")
    return str(name)


def is_reference(inline: bytes | None, name: str | None) -> bool:
    """Return whether the row refers to a blob. If plain SQL replaced the placeholder, the inline value counts."""
    return name is not None and inline == PLACEHOLDER.encode()
