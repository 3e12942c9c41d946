"""Run parts of the fault laboratory, from tests/: `python -m faults [part…] [--seed N] [--only CASE]`."""

import argparse
import importlib
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
from faults.report import Report

_MEMORY = "/dev/shm"  # thousands of databases are flushed faster there


def parts() -> dict[str, Any]:
    """Return the modules of this package that have a function `run(report)`, by name."""
    names = [one.name for one in pkgutil.iter_modules(faults.__path__) if not one.name.startswith(("test_", "__"))]
    found = {name: importlib.import_module(f"faults.{name}") for name in names}
    return {name: module for name, module in found.items() if hasattr(module, "run")}


def run_part(name: str, seed: int, effort: float, only: int | None = None) -> Report:
    """Run one part in a folder of its own. It is kept if there are violations."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
    report = Report(name, seed, effort, folder, only)
    parts()[name].run(report)
    if report.violations:
        report.count(f"files kept in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def main() -> int:
    """Run the parts and print their reports. Return 1 if one has a violation."""
    known = parts()
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"default: all of {', '.join(known)}")
    parser.add_argument("--seed", type=int, help="replays a run; random by default")
    parser.add_argument("--only", type=int, help="tries only the case with this number, as a violation names it")
    parser.add_argument("--effort", type=float, default=1.0, help="a fraction of the full run, such as 0.1")
    given = parser.parse_args()
    if unknown := set(given.parts) - known.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    failed = False
    for name in given.parts or known:
        seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
        begun = time.monotonic()
        report = run_part(name, seed, given.effort, given.only)
        print("\n".join(report.lines()))
        print(f"  {time.monotonic() - begun:.1f} s", flush=True)
        failed = failed or bool(report.violations)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
