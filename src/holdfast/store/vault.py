"""Between a store and what keeps its blobs: it says what is large, names it, and trusts nothing that comes back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..blobs import LARGEST_INLINE_BYTES, BlobStore, ListedBlobs, is_name, name_of, require_name
from ..codec import MAX_BYTES
from ..errors import BlobDamaged, BlobError, BlobMissing, HoldfastError, PayloadTooLarge
from ..failure import shorten


class Vault:
    """large_bytes: what has more is put into the blob store; None: nothing is."""

    def __init__(self, blobs: BlobStore, large_bytes: int | None) -> None:
        self._blobs, self._is_on = blobs, large_bytes is not None
        self._limit = LARGEST_INLINE_BYTES if large_bytes is None else large_bytes
        self.surely_small = self._limit // 4  # characters, however many bytes each has

    @property
    def kind(self) -> str:
        """Which one it is: another kind would not find what this one has."""
        return type(self._blobs).__qualname__

    @property
    def listed(self) -> ListedBlobs | None:
        """The same, if it can say what it has."""
        return self._blobs if isinstance(self._blobs, ListedBlobs) else None

    def is_large(self, text: str) -> bool:
        return len(text) > self.surely_small and _bytes_of(text) > self._limit

    def require_on(self, size: int) -> None:
        if not self._is_on:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes and may have {self._limit:,} where blob_bytes=None: store it "
                "elsewhere and pass a reference"
            )

    def put(self, data: bytes) -> str:
        """Returns its name."""
        name = name_of(data)
        with _explained("could not keep a payload or result"):
            self._blobs.put(name, data)
        return name

    def get(self, name: Any) -> bytes:
        """What was put, or BlobMissing, or BlobDamaged."""
        require_name(name)
        with _explained("could not give back a payload or result"):
            try:
                data: Any = self._blobs.get(name)
            except HoldfastError:
                raise
            except (LookupError, FileNotFoundError) as error:
                raise BlobMissing(f"{self.kind} has no {name} any more: {shorten(repr(error))}") from error
        if not isinstance(data, bytes) or len(data) > MAX_BYTES or name_of(data) != name:
            raise BlobDamaged(
                f"what {self.kind} has as {name} is not what was put there: restore it from a backup, or run the job "
                "with its payload again"
            )
        return data

    def has(self, name: str) -> bool:
        if self.listed is not None:
            return self.listed.has(name)
        try:
            self.get(name)
        except BlobMissing:
            return False
        return True

    def delete(self, name: Any) -> None:
        if is_name(name):
            with _explained("could not delete a blob"):
                self._blobs.delete(name)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # the user's own blob store
        raise BlobError(f"the blob store {what}: {shorten(repr(error))}") from error
