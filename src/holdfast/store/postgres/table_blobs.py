"""Large payloads and results in a table."""

from collections.abc import Callable, Iterator
from typing import Any

from ...clock import SECOND, Clock
from ...errors import BlobMissing
from ..statements import Statements

PAGE = 500


class TableBlobs:
    """A blob store in the database itself. Implements ListableBlobStore."""

    partitions = 1

    def __init__(
        self, rows: Callable[..., list[Any]], change: Callable[..., int], sql: Statements, clock: Clock
    ) -> None:
        self._rows, self._change, self._sql, self._clock = rows, change, sql, clock

    def put(self, name: str, data: bytes) -> None:
        self._change(self._sql.put_blob, (name, data))

    def get(self, name: str) -> bytes:
        rows = self._rows(self._sql.get_blob, (name,))
        if not rows:
            raise BlobMissing(f"there is no blob {name}")
        return bytes(rows[0][0])

    def delete(self, name: str) -> None:
        self._change(self._sql.delete_blob, (name,))

    def has(self, name: str) -> bool:
        return bool(self._rows(self._sql.has_blob, (name,)))

    def older_than(self, seconds: float, partition: int) -> Iterator[str]:
        del partition
        before, after = self._clock.now() - round(seconds * SECOND), ""
        while rows := self._rows(self._sql.old_blobs, {"before": before, "after": after, "limit": PAGE}):
            yield from (row[0] for row in rows)
            after = rows[-1][0]
