"""Mutants are made of every condition, and of nothing else."""

import re

import pytest

from faults.mutation import EQUIVALENT, PACKAGE, all_mutants, changes_of, triggers


def names(text: str) -> list[str]:
    return [name for name, _ in changes_of(text)]


def test_each_condition_is_removed_and_inverted_once() -> None:
    text = "UPDATE t SET a = 1 WHERE b = 2 AND (c OR NOT d) AND e IN (SELECT f FROM g WHERE h) RETURNING i = 1"
    assert dict(changes_of(text)) == {
        "without b = 2": text.replace("b = 2", "(1 OR (b = 2))"),
        "not b = 2": text.replace("b = 2", "NOT (b = 2)"),
        "without (c OR NOT d)": text.replace("(c OR NOT d)", "(1 OR ((c OR NOT d)))"),
        "not (c OR NOT d)": text.replace("(c OR NOT d)", "NOT ((c OR NOT d))"),
        "without OR c": text.replace("c OR", "(0 AND (c)) OR"),
        "not c": text.replace("c OR", "NOT (c) OR"),
        "without OR NOT d": text.replace("NOT d", "(0 AND (NOT d))"),
        "not NOT d": text.replace("NOT d", "NOT (NOT d)"),
        "without e IN (SELECT f FROM g WHERE h)": text.replace(
            "e IN (SELECT f FROM g WHERE h)", "(1 OR (e IN (SELECT f FROM g WHERE h)))"
        ),
        "not e IN (SELECT f FROM g WHERE h)": text.replace(
            "e IN (SELECT f FROM g WHERE h)", "NOT (e IN (SELECT f FROM g WHERE h))"
        ),
        "without h": text.replace("WHERE h", "WHERE (1 OR (h))"),
        "not h": text.replace("WHERE h", "WHERE NOT (h)"),
    }


def test_conditions_of_case_join_and_triggers_are_found() -> None:
    assert names("SELECT CASE WHEN a THEN b ELSE c END FROM d CROSS JOIN e ON f ORDER BY g") == [
        "without a",
        "not a",
        "without f",
        "not f",
    ]
    trigger = """CREATE TRIGGER x AFTER UPDATE OF y ON z WHEN NEW.a
        BEGIN INSERT INTO b VALUES (1) ON CONFLICT DO NOTHING; END;"""
    assert names(trigger) == ["without NEW.a", "not NEW.a"]


def test_every_statement_and_trigger_with_a_condition_has_mutants() -> None:
    found = {one.place for one in all_mutants()}
    assert triggers().keys() <= found and {"claim_task", "succeed_many", "recover", "promote", "move_fold"} <= found
    assert len({one.name for one in all_mutants()}) == len(all_mutants()) > 700
    assert all(reason for reason in EQUIVALENT.values())


@pytest.mark.parametrize("file", ["claim.sql", "settle.sql"])
def test_no_statement_with_a_condition_is_left_out(file: str) -> None:
    text = (PACKAGE / "store/sqlite/sql" / file).read_text()
    blocks = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)[1:]
    wanted = {name for name, body in zip(blocks[::2], blocks[1::2], strict=True) if re.search(r"\bWHERE\b", body)}
    assert wanted == {one.place for one in all_mutants() if one.group == file}
