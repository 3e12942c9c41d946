"""A seed of the simulation replays exactly, and a violation says how."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from faults.simulation import CONTROLS, find, simulate

SEEDS = (3, 7)


def fingerprint(seed: int) -> str:
    return hashlib.sha256(repr(simulate(seed).trace).encode()).hexdigest()


def test_two_runs_of_one_seed_have_the_same_trace() -> None:
    first, second = simulate(SEEDS[0]), simulate(SEEDS[0])
    assert len(first.trace) > 100
    assert first.trace == second.trace
    assert first.counts == second.counts
    assert simulate(SEEDS[1]).trace != first.trace


def test_another_process_with_other_hashes_does_the_same() -> None:
    ours = [fingerprint(seed) for seed in SEEDS]
    code = "import sys; from faults.test_simulation import *; print(*map(fingerprint, map(int, sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, SEEDS)],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ours


def test_a_violation_names_its_seed_and_replays_with_the_same_trace() -> None:
    what = "no commit: an enqueue is acknowledged and not stored"
    found, (fault, settings, _) = find(what), CONTROLS[what]
    assert found is not None
    with fault():
        again = simulate(found.seed, **settings)
    assert again.violation == found.violation
    assert again.trace == found.trace
    *trace, last = found.report(20).splitlines()
    assert last == f"seed {found.seed}: {found.violation}"
    assert len(trace) == 20
    assert simulate(found.seed, **settings).violation is None
