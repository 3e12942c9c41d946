"""Where the files lie: on a real disk, in a folder that is removed afterwards."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

from holdfast.store.sqlite.files import file_system_type

_IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=_real_disk()) as folder:
        yield Path(folder)


def _real_disk() -> Path:
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    for folder in candidates:
        if folder.is_dir() and file_system_type(folder) not in _IN_MEMORY:
            return folder
    raise RuntimeError("every folder for temporary files is in memory: set TMPDIR to one on a disk")


def flush_milliseconds(folder: Path, times: int = 200) -> float:
    """What one flush of 4 KiB costs here: the reason why FULL is slower than NORMAL."""
    descriptor = os.open(folder / "flush", os.O_CREAT | os.O_WRONLY)
    try:
        os.pwrite(descriptor, bytes(4096 * times), 0)
        os.fsync(descriptor)
        taken = []
        for page in range(times):
            begin = perf_counter()
            os.pwrite(descriptor, bytes(4096), page * 4096)
            os.fdatasync(descriptor)
            taken.append(perf_counter() - begin)
        return median(taken) * 1000
    finally:
        os.close(descriptor)
