"""The short form of the fault laboratory: each part, with a small effort and a seed that is always the same."""

from pathlib import Path

import pytest

from faults import hostile_rows, io_faults
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


def test_the_number_of_a_disk_error_replays_it() -> None:
    calls = {(stage, fault): 2 for stage in io_faults.STAGES for fault in io_faults.FAULTS}
    tried = io_faults._cases(Report("io_faults", 1, 1.0, Path()), calls)
    assert len({case.number for case in tried}) == len(tried) > 2 * len(calls)
    for case in tried:
        assert io_faults._cases(Report("io_faults", 1, 1.0, Path(), case.number), dict.fromkeys(calls, 0)) == [case]


def test_each_hostile_value_is_in_one_group_and_no_group_has_two_of_a_table() -> None:
    sizes = {"a": 7, "b": 5, "c": 5, "d": 1, "holdfast_migrations": 2}
    names = [(table, str(number)) for table, size in sizes.items() for number in range(size)]
    cases = {number: hostile_rows.Case(table, "x", value) for number, (table, value) in enumerate(names)}
    groups = hostile_rows.together(cases)
    assert sorted(number for group in groups for number in group) == sorted(cases)
    assert all(len({case.table for case in group.values()}) == len(group) for group in groups)
    assert [len(group) for group in groups if "holdfast_migrations" in {one.table for one in group.values()}] == [
        1,
        1,
    ]
