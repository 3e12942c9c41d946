"""Create and flush files of Holdfast: private with any umask, never through a link, with typed errors.

Blobs, archives, the lock file of workers and the database file are created here. Their names come from the path of
the database, from a content hash, or from the operator, never from the name of a queue, task or key.
"""

import errno
import os
import stat
import sys
from pathlib import Path

from ..errors import CannotOpen, DiskFull, ReadOnlyDatabase, StoreError

FILE_MODE = 0o600
# Neither follow a symbolic link nor wait for the other end of a pipe: both could have been planted.
SAFE = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class NotPrivate(OSError):
    """A file of Holdfast is in fact a link, has several names, or is not a regular file."""


def create_file(path: Path, flags: int = os.O_RDWR, mode: int = FILE_MODE) -> int:
    """Create a file with these permissions, whatever the umask. Raise FileExistsError if the name is taken."""
    file = os.open(path, flags | os.O_CREAT | os.O_EXCL | SAFE, mode)
    if stat.S_IMODE(os.fstat(file).st_mode) != mode:
        os.fchmod(file, mode)
    return file


def open_or_create(path: Path, mode: int = FILE_MODE) -> tuple[int, bool]:
    """Open a regular file that has no other name. Create it if there is none. Return whether it is new.

    A hard link could be planted, too: to a file whose locks or content are another program's.
    """
    while True:
        try:
            file, is_new = os.open(path, os.O_RDWR | SAFE), False
        except FileNotFoundError:
            try:
                file, is_new = create_file(path, mode=mode), True
            except FileExistsError:  # another process was faster, or it is a dangling link
                if path.is_symlink():
                    raise NotPrivate(errno.ELOOP, "it is a symbolic link") from None
                continue
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPrivate(errno.ELOOP, "it is a symbolic link") from None
            raise
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
            return file, is_new
        os.close(file)
        is_regular = stat.S_ISREG(found.st_mode)
        raise NotPrivate(errno.EMLINK, "it has several names" if is_regular else "it is not a regular file")


def flush(file: int) -> None:
    """Flush a file or folder to the disk."""
    if sys.platform == "darwin":  # fsync there leaves the data in the disk's cache
        import fcntl

        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fsync(file)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flush(opened)
    finally:
        os.close(opened)


def as_store_error(error: OSError, what: str, kind: type[StoreError] = StoreError) -> StoreError:
    """Return the exception to raise instead. what: the file, and what it is for. kind: for all other problems."""
    if isinstance(error, NotPrivate):
        return CannotOpen(f"{what} cannot be used, since {error.strerror}: remove what has its name")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space is left for {what}: free some space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyDatabase(
            f"{what} cannot be created or written ({error.strerror}): check its permissions and the mount"
        )
    return kind(f"{what} cannot be used ({error.strerror}): check the disk and the system log")
