"""What tests of large payloads share: a text that is large, where its file is, and a blob store in memory."""

import hashlib
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.errors import BlobMissing
from holdfast.model.pruning import CollectBlobs

LARGE = 64 * 1024
HOSTILE = ["../../etc/passwd", "/etc/passwd", "", "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "/", "..", b"\xff\x00", 7]
"""None of these is the name of a blob."""


def large(size: int = 2 * LARGE, letter: str = "x") -> str:
    """A text of so many bytes as JSON, with its quotes."""
    return letter * (size - 2)


def name_of(body: str) -> str:
    return hashlib.sha256(f'"{body}"'.encode()).hexdigest()


def blob_files(database: str, folder: str = "-blobs") -> list[Path]:
    return sorted(path for path in Path(f"{database}{folder}").rglob("*") if path.is_file())


def missing(app: Holdfast) -> list[Any]:
    """What jobs refer to, and is not there, as the doctor sees it: the job, which of the two, and the name."""
    found = app.check(deep=True).of("BLOBS_MISSING")
    return [] if found is None else list(found.detail["blobs"])


def orphaned(app: Holdfast) -> int:
    """How many files no job refers to, of those that are there for an hour."""
    found = app.check(deep=True).of("BLOBS_ORPHANED")
    return 0 if found is None else int(found.detail["files"])


def collect(app: Holdfast, limit: int = 1000) -> int:
    """Delete what no job refers to. Returns how many."""
    done = app.store.pruning.delete(None, CollectBlobs(limit), {})
    assert done is not None
    return done.rows


class MemoryBlobs:
    """As an object store would be, with a protocol of what was asked of it."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.trouble: Exception | None = None

    def put(self, name: str, data: bytes) -> None:
        self._ask("put")
        self.kept[name] = data

    def get(self, name: str) -> bytes:
        self._ask("get")
        try:
            return self.kept[name]
        except KeyError:
            raise BlobMissing(f"there is no {name}") from None

    def delete(self, name: str) -> None:
        self._ask("delete")
        self.kept.pop(name, None)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.trouble is not None:
            raise self.trouble
