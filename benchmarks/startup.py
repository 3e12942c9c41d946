"""What importing the package adds to the start of Python."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from .measure import Effort, Figure, Target, take_turns

RUNS = 25
FEWEST_RUNS = 5


def import_time(_folder: Path, effort: Effort) -> Iterator[Figure]:
    for command in ("pass", "import holdfast"):
        _run(command)  # compiles, and fills the disk cache
    contest = take_turns(effort.of(RUNS, FEWEST_RUNS), lambda: _run("pass"), lambda: _run("import holdfast"))
    added = [(ours - bare) * 1000 for bare, ours in zip(contest.floor, contest.ours, strict=True)]
    yield Figure(
        "import holdfast, over bare python",
        floor=f"{median(contest.floor) * 1000:.1f} ms",
        ours=f"{median(contest.ours) * 1000:.1f} ms",
        value=median(added),
        spread=(min(added), max(added)),
        target=Target(60, at_least=False, unit="ms"),
    )


def _run(command: str) -> float:
    begin = perf_counter()
    subprocess.run([sys.executable, "-c", command], check=True)
    return perf_counter() - begin
