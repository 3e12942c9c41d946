"""The short form of the fault laboratory: each part, with a small effort and a seed that is always the same."""

import pytest

from faults.__main__ import parts, run_part
from faults.report import Report

SEED = 13
PARTS = parts()


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_the_fault_laboratory_finds_no_violation(name: str) -> None:
    report = run_part(name, SEED, PARTS[name].SHORT)
    print("\n".join(report.lines()))
    assert report.violations == []
    assert report.counters and report.controls, "a part counts what it hits, and has a negative control"


def test_a_negative_control_that_is_not_caught_and_a_counter_that_stays_zero_are_violations() -> None:
    report = Report("part", 7, 1.0, None)  # type: ignore[arg-type]
    report.control("no fsync", caught=False)
    report.require("faults")
    assert report.violations == [
        "negative control not caught: no fsync (--seed 7)",
        "never hit: faults (--seed 7)",
    ]
