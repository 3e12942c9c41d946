"""Real, small disks: mounted for a test, filled, and made read-only; and what fills them."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast

Disk = Callable[[str], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount real, small disks, and unmount them after the test."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        place = tmp_path / f"disk-{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "holdfast-test", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a real small disk needs the right to mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def free(place: Path) -> int:
    usage = os.statvfs(place)
    return usage.f_bavail * usage.f_frsize


def fill(place: Path, leave: int = 0) -> Path:
    """Fill the disk with a file, except for so many bytes."""
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        try:
            while (room := free(place) - leave) > 0:
                file.write(b"\0" * min(room, 65536))
                file.flush()
        except OSError:
            pass
    return ballast


Send = Callable[[Holdfast], Any]

SENDS: dict[str, Send] = {
    "send": lambda app: app.queue("inbox").send("x" * 5000),
    "send with key": lambda app: app.queue("inbox").send("x" * 5000, key="k"),
    "send_many": lambda app: app.queue("inbox").send_many(["x" * 5000] * 3),
}
