"""After a failed flush: write the write-ahead log (WAL) again, and flush it.

When fsync fails, the kernel reports it once to each descriptor and forgets what it could not write. Commits that
follow would be flushed, and yet lie behind a gap in the log: after a power cut SQLite reads the log up to the gap. A
checkpoint does not help. It copies what is behind the gap into the database, and a power cut before the log is reset
leaves a database that is newer than what SQLite reads of the log: a mix of two states.

The gap is closed by writing the same bytes at the same place again, and flushing them. It is safe beside other
processes: with the write lock held, nothing else writes the log, and readers see the bytes that they saw before.
First the checksums of the log show that the kernel still has the bytes. The log must lead to a row that was committed
just before: otherwise its end would be unknown.

Other processes that had the log open get the error as well, at their next flush. Processes that open it later do not.
For them there is a file beside the database, until the log is whole. It need not survive a power cut: after one, what
is on the disk is all there is. See docs/internals/failed-flush.md.
"""

import errno
import logging
import os
import secrets
import sqlite3
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

from ....errors import CorruptDatabase, FlushFailed, HoldfastError
from ...private_files import create_file, flush
from .errors import SQLITE_ERRORS, flush_failed, translate

log = logging.getLogger("holdfast.store")
RETRY_SECONDS = 0.2
TOKEN_ATTEMPTS = 3  # another process may reset the log after the row was committed
TOKEN_NAME = "log_written_again"
_WORD = 0xFFFFFFFF
_HEADER = struct.Struct(">8I")  # magic, format, page size, sequence, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page, size of the database after a commit or 0, two salts, two checksums
_MAGIC = 0x377F0682  # the lowest bit tells the byte order of the checksums
Retry = Callable[[Callable[[], object]], object]


class FailedFlush:
    """Whether a flush has failed, and how to recover from it. Not thread-safe: only the leader of the group commit
    calls it, except `is_open`.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, set_meta: str, on_failure: Callable[[], None]
    ) -> None:
        """connection: not used for anything else while `recover` runs. on_failure: called when a flush has failed."""
        self._path, self._wal, self._mark = path, Path(f"{path}-wal"), mark_path(path)
        self._connection, self._set_meta, self._on_failure = connection, set_meta, on_failure
        self._retry_at = 0.0
        self._reason: object = "in an earlier process"
        self.is_open = False
        """Whether something that was written may be missing on the disk."""
        self.look()

    def look(self) -> None:
        """Notice that a flush has failed in another process."""
        if not self.is_open and self._mark.exists():
            self._begin("in another process")

    def notice(self, error: BaseException) -> None:
        """Notice that a flush has failed in this process, and try to recover at once."""
        log.error("the disk could not flush %s: %s", self._path, error)
        self._begin(error)
        self._retry_at = 0.0
        with suppress(HoldfastError):
            self.recover(_run_once)

    def refuse(self) -> FlushFailed:
        """Return the exception for what must be on disk."""
        return flush_failed(self._path, self._reason)

    def recover(self, retry: Retry) -> None:
        """Write the log again, and flush it. Raise FlushFailed if that is not possible yet.

        retry: runs an action that takes the write lock.
        """
        if monotonic() < self._retry_at:
            raise self.refuse()
        self._retry_at = monotonic() + RETRY_SECONDS
        try:
            for _ in range(TOKEN_ATTEMPTS):
                token = secrets.token_hex(16)
                self._commit(token, retry)
                if self._write_again(token, retry):
                    return
        except SQLITE_ERRORS as error:
            raise translate(error, self._path) from error
        except OSError as error:
            self._reason = error.strerror
            raise self.refuse() from error
        raise CorruptDatabase(
            f"the disk could not flush the log of {self._path}, and the system has dropped what was not flushed: end "
            "all programs that use it, and start them again. What was acknowledged before is on the disk"
        )

    def _begin(self, reason: object) -> None:
        self._reason = reason
        self._leave_mark()
        if not self.is_open:
            self.is_open = True
            self._on_failure()

    def _commit(self, token: str, retry: Retry) -> None:
        """Commit the row at which the log must end. Not flushed."""
        connection = self._connection
        retry(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            connection.execute(self._set_meta, (TOKEN_NAME, token))
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _write_again(self, token: str, retry: Retry) -> bool:
        """Return False if the log does not lead to the token."""
        retry(lambda: self._connection.execute("BEGIN IMMEDIATE"))
        try:
            # SQLite locks no byte of the log, so that closing this descriptor drops no lock of this process.
            file = os.open(self._wal, os.O_RDWR | os.O_CLOEXEC)
            try:
                end = end_of_log(file, token.encode())
                if end == 0:
                    return False
                _copy_in_place(file, end)
                flush(file)
            except OSError:
                self._leave_mark()  # with the write lock: another process may have removed it
                raise
            finally:
                os.close(file)
            self._mark.unlink(missing_ok=True)
            self.is_open = False
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        log.warning("the log of %s is flushed again", self._path)
        return True

    def _leave_mark(self) -> None:
        with suppress(OSError):  # there already, or the disk takes nothing
            os.close(create_file(self._mark))


def mark_path(path: Path) -> Path:
    return Path(f"{path}-unflushed")


def end_of_log(file: int, token: bytes) -> int:
    """Return the size of the log up to its last valid frame, or 0 if no page of it up to there contains the token."""
    header = os.pread(file, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        return 0
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack(header)
    order = ">" if magic & 1 else "<"
    sums = _checksum(header[:24], order, 0, 0)
    if magic & ~1 != _MAGIC or sums != (first, second):
        return 0
    at, found = _HEADER.size, False
    while len(frame := os.pread(file, _FRAME.size + page_size, at)) == _FRAME.size + page_size:
        _, _, *frame_salts, first, second = _FRAME.unpack_from(frame)
        sums = _checksum(frame[:8] + frame[_FRAME.size :], order, *sums)
        if frame_salts != salts or sums != (first, second):
            break
        found = found or token in frame
        at += len(frame)
    return at if found else 0


def _checksum(data: bytes, order: str, first: int, second: int) -> tuple[int, int]:
    """Continue SQLite's checksum of the log: https://sqlite.org/fileformat2.html#checksum_algorithm"""
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second


def _copy_in_place(file: int, end: int) -> None:
    at = 0
    while at < end:
        data = os.pread(file, min(1024 * 1024, end - at), at)
        if not data:
            raise OSError(errno.EIO, "the log was truncated by another program")
        at += os.pwrite(file, data, at)


def _run_once(action: Callable[[], object]) -> object:
    return action()
