"""Databases that a doctor looks over, and what is found in them."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from holdfast.clock import SystemClock
from holdfast.model.diagnosis import Examination
from holdfast.store.sqlite.diagnose import Patient
from holdfast.supervisor.offline_doctor import check_database
from holdfast.upkeep.doctor.doctor import diagnose
from holdfast.upkeep.doctor.findings import Checkup, Finding

MIB = 1024 * 1024
FINE = {"ok", "note"}


def check(path: Path, **options: Any) -> Checkup:
    return check_database(str(path), prefix="holdfast_", **options)


def finding(path: Path, code: str, severity: str, **options: Any) -> Finding:
    """The one of this code, which says what it is about and what mends it."""
    found = check(path, **options)
    one = found.of(code)
    assert one is not None, [str(other) for other in found.findings]
    assert one.severity == severity
    assert found.ok == (found.severity in FINE)
    return one


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def examined(path: Path, **changes: Any) -> Examination:
    """What is found in a database, but for some changes that no test can bring about."""
    found = Patient(str(path), "holdfast_", SystemClock()).examine(16 * MIB)
    return msgspec.structs.replace(found, **changes)


def codes(found: Examination) -> dict[str, str]:
    return {one.code: one.severity for one in diagnose(found)}


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}
