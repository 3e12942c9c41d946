"""The tables of the doctor's checks are complete: every query is used, and every finding has a test."""

from pathlib import Path

from holdfast import Holdfast
from holdfast.store.sqlite.diagnose import SAMPLES
from holdfast.upkeep.doctor.doctor import OF_SERVERS, SECTIONS

CHECKS = [check for checks in SECTIONS.values() for check in checks]
TESTS = Path(__file__).parent.parent


def test_every_query_is_used_and_every_part_is_read(app: Holdfast) -> None:
    of_files = [check for title, checks in SECTIONS.items() if title not in OF_SERVERS for check in checks]
    parts = {part for check in of_files for part in check.parts}
    examined = app.store.file.diagnose(deep=True).examined
    assert set(SAMPLES) <= parts <= examined


def test_every_finding_is_brought_about_by_a_test() -> None:
    source = "\n".join(file.read_text(encoding="utf-8") for file in TESTS.rglob("test_*.py"))
    codes = {case.code for check in CHECKS for case in check.cases}
    assert {code for code in codes if f'"{code}"' not in source} == set()


def test_every_check_is_a_question() -> None:
    questions = [check.question for check in CHECKS]
    assert len(set(questions)) == len(questions) and all("?" in question for question in questions)
