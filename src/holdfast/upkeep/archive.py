"""The archive of deleted jobs: a gzip file of JSON lines that is only appended to.

Each batch is a gzip member of its own; gzip tools read all members as one file. A member states its length in its
header. So a member that a crash has truncated is found, and removed before the next is written: otherwise nothing
after it could be read.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..errors import ArchiveError
from ..store.private_files import create_file, flush, flush_folder

# RFC 1952: magic, deflate, FEXTRA; no time, no flags, unknown system; one extra field "HF" of eight bytes.
_HEAD = struct.Struct("<4sIBBH2sHQ")
_MAGIC = b"\x1f\x8b\x08\x04"
_FIELD = b"HF"
_TAIL = struct.Struct("<II")
MEMBER_BYTES = 4 * 1024 * 1024


class Archive:
    """An archive file, open for appending by one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.name.endswith(".gz"):
            raise ArchiveError(f"the name of an archive must end in .gz, such as jobs.jsonl.gz, got {self.path}")
        try:
            self._file, is_new = self._open()
        except OSError as error:
            raise self._error("opened", error) from error
        try:
            self._prepare(is_new)
        except BaseException as error:
            os.close(self._file)
            if isinstance(error, OSError):
                raise self._error("written", error) from error
            raise

    def _open(self) -> tuple[int, bool]:
        """Open the file, or create it. An operator may name a link to an archive."""
        try:
            return create_file(self.path), True
        except FileExistsError:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK), False

    def _error(self, action: str, error: OSError) -> ArchiveError:
        return ArchiveError(
            f"the archive {self.path} cannot be {action}: {error.strerror}. Jobs not in it were not deleted"
        )

    def _prepare(self, is_new: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise ArchiveError(f"the archive {self.path} is not a regular file: choose another file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ArchiveError(
                f"another process is writing to {self.path}: wait until it has finished, or choose another file"
            ) from None
        if is_new:
            flush_folder(self.path.absolute().parent)
        self._end = _end_of_members(self._file, self.path)
        os.ftruncate(self._file, self._end)

    def append(self, lines: Iterable[bytes]) -> int:
        """Write these lines, and flush them to disk. Return their number."""
        text, count, begin = bytearray(), 0, self._end
        try:
            for line in lines:
                text += line + b"\n"
                count += 1
                if len(text) > MEMBER_BYTES:
                    self._write(_member(text))
                    text.clear()
            if text:
                self._write(_member(text))
            flush(self._file)
        except OSError as error:
            # After a failed flush the disk may lack any part of it: the next batch must not come after a gap.
            self._end = begin
            with suppress(OSError):
                os.ftruncate(self._file, begin)
            raise self._error("written", error) from error
        return count

    def _write(self, member: bytes) -> None:
        written = 0
        while written < len(member):
            written += os.pwrite(self._file, member[written:], self._end + written)
        self._end += len(member)

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _member(data: bytes | bytearray) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = packer.compress(data) + packer.flush()
    length = _HEAD.size + len(body) + _TAIL.size
    head = _HEAD.pack(_MAGIC, 0, 0, 255, 12, _FIELD, 8, length)
    return head + body + _TAIL.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)


def _end_of_members(file: int, path: Path) -> int:
    """Return the offset after the last complete member."""
    size, at = os.fstat(file).st_size, 0
    while at < size:
        head = os.pread(file, _HEAD.size, at)
        if len(head) < _HEAD.size and _MAGIC.startswith(head[:4]):
            break
        magic, _, _, _, _, field, _, length = _HEAD.unpack(head.ljust(_HEAD.size))
        if magic != _MAGIC or field != _FIELD or length <= _HEAD.size:
            raise ArchiveError(f"{path} exists and is not an archive of Holdfast: choose another file")
        if at + length > size:
            break
        at += length
    return at
