"""What a store does about large payloads and results, which are kept by reference: see blobs.py."""

from __future__ import annotations  # so that they cost nothing at import

from typing import Protocol

from ..model import Settlement


class Apart(Protocol):
    def is_large(self, settlement: Settlement) -> bool:
        """Whether its result, or the payload of what its chain goes on with, is to be kept by reference."""
        ...

    def keep_apart(self, settlement: Settlement) -> Settlement:
        """The same, with what is large in it put where it is kept: before it is settled."""
        ...

    def fetch(self, name: str) -> bytes:
        """What is kept by this name. Raises BlobMissing or BlobDamaged; BlobError where that cannot be told now."""
        ...

    def collect_blobs(self, limit: int = 1000) -> int:
        """Delete what no job refers to any more, at most so many; returns how many."""
        ...
