"""What the doctor finds in the database of an app, or in a file."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Holdfast
from holdfast.cli.commands.doctor import check_database
from holdfast.clock import SystemClock
from holdfast.model.diagnosis import Diagnosis
from holdfast.store.sqlite.diagnose import OfflineDatabase
from holdfast.upkeep.doctor.check import Checkup, Finding
from holdfast.upkeep.doctor.doctor import diagnose

MIB = 1024 * 1024


def finding_in(checkup: Checkup, code: str, severity: str) -> Finding:
    """The finding with this code, which has this severity."""
    finding = checkup.of(code)
    assert finding is not None, [str(other) for other in checkup.findings]
    assert finding.severity == severity and finding.meaning.endswith((".", "?"))
    return finding


def finding_of(app: Holdfast, code: str, severity: str, **options: Any) -> Finding:
    return finding_in(app.check(**options), code, severity)


def problems(app: Holdfast, **options: Any) -> set[str]:
    """The codes of warnings and errors."""
    return {finding.code for finding in app.check(**options).findings if finding.severity in ("warning", "error")}


def check(path: Path, **options: Any) -> Checkup:
    return check_database(str(path), prefix="holdfast_", **options)


def finding(path: Path, code: str, severity: str, **options: Any) -> Finding:
    return finding_in(check(path, **options), code, severity)


def diagnosis_of(path: Path, min_free_bytes: int = 16 * MIB, **changes: Any) -> Diagnosis:
    """The diagnosis of a database, with changes that no test can bring about."""
    diagnosis = OfflineDatabase(str(path), "holdfast_", SystemClock(), min_free_bytes).diagnose()
    return msgspec.structs.replace(diagnosis, **changes)


def severities(diagnosis: Diagnosis) -> dict[str, str]:
    return {finding.code: finding.severity for finding in diagnose(diagnosis)}


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}
