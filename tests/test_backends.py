"""The conformance suite knows of no database: what one of them needs is in `support/backend.py`."""

import re
from pathlib import Path

CONFORMANCE = Path(__file__).parent / "conformance"
OF_A_DATABASE = re.compile(r"\b(sqlite3|psycopg|PRAGMA|rowid|sqlite_master|pg_\w+)\b|store[./](sqlite|postgres)")


def test_the_conformance_suite_knows_no_database() -> None:
    found = {
        f"{file.relative_to(CONFORMANCE)}:{number}: {line.strip()}"
        for file in CONFORMANCE.rglob("*.py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if OF_A_DATABASE.search(line)
    }
    assert found == set()
