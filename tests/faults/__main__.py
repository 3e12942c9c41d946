"""Run parts of the fault laboratory, from tests/: `python -m faults [part…] [--seed N] [--only CASE]`.

A long run can be cut into pieces, which may run at other times or beside each other, and are put together at the end:
`python -m faults simulation --seed 1 --piece 1/20 --save folder`, …, `python -m faults --whole folder`.
"""

import argparse
import importlib
import json
import os
import pkgutil
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import faults
from faults.report import Report, whole

_MEMORY = "/dev/shm"  # thousands of databases are flushed faster there


def parts() -> dict[str, Any]:
    """Return the modules of this package that have a function `run(report)`, by name."""
    names = [one.name for one in pkgutil.iter_modules(faults.__path__) if not one.name.startswith(("test_", "__"))]
    found = {name: importlib.import_module(f"faults.{name}") for name in names}
    return {name: module for name, module in found.items() if hasattr(module, "run")}


def run_part(name: str, seed: int, effort: float, only: int | None = None, piece: tuple[int, int] = (1, 1)) -> Report:
    """Run one part in a folder of its own. It is kept if there are violations."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
    report = Report(name, seed, effort, folder, only, piece)
    begun = time.monotonic()
    parts()[name].run(report)
    report.seconds = time.monotonic() - begun
    if report.violations:
        report.count(f"files kept in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def main() -> int:
    """Run the parts and print their reports. Return 1 if one has a violation."""
    known = parts()
    given = _arguments(known)
    failed = False
    if given.whole is not None:
        saved = sorted({tuple(file.name.split(".")[:2]) for file in given.whole.glob("*.json")})
        for name, seed in saved:
            failed |= _tell(whole(name, int(seed), sorted(given.whole.glob(f"{name}.{seed}.*.json"))))
        return int(failed)
    for name in given.parts or known:
        seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
        report = run_part(name, seed, given.effort, given.only, given.piece)
        failed |= _tell(report)
        if given.save is not None:
            given.save.mkdir(parents=True, exist_ok=True)
            (given.save / f"{name}.{seed}.{given.piece[0]}.json").write_text(json.dumps(report.data()))
    return int(failed)


def _arguments(known: dict[str, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"default: all of {', '.join(known)}")
    parser.add_argument("--seed", type=int, help="replays a run; random by default")
    parser.add_argument("--only", type=int, help="tries only the case with this number, as a violation names it")
    parser.add_argument("--effort", type=float, default=1.0, help="a fraction of the full run, such as 0.1")
    parser.add_argument(
        "--piece", type=_piece, default=(1, 1), help="tries only this piece of the cases, such as 3/20"
    )
    parser.add_argument("--save", type=Path, help="a folder to store the report of a piece in")
    parser.add_argument("--whole", type=Path, help="puts the pieces in this folder together, and runs nothing")
    given = parser.parse_args()
    if unknown := set(given.parts) - known.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return given


def _piece(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        raise ValueError(text)
    return number, of


def _tell(report: Report) -> bool:
    """Print a report. Return whether it has violations."""
    print("\n".join(report.lines()))
    print(f"  {report.seconds:.1f} s", flush=True)
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
