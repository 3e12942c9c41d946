"""holdfast web-user: who may use the web page, in a file with hashes."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.web import Users, identity
from holdfast.web.auth import token_hash

PASSWORD = "correct horse battery"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def run(users: Path, *arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["web-user", *arguments, "--auth", str(users)], input=given)


def add(users: Path, name: str = "ada", role: str = "operator", password: str = PASSWORD) -> None:
    added = run(users, "add", name, "--role", role, "--password-stdin", given=f"{password}\n")
    assert (added.exit_code, added.output) == (0, f"{name} is {'an' if role[0] in 'ao' else 'a'} {role}.\n")


def test_a_user_is_added_with_a_hash_of_the_password(users: Path) -> None:
    add(users)
    assert PASSWORD not in users.read_text()
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert Users(users).check_password("ada", PASSWORD) == identity("ada", "operator")
    assert Users(users).check_password("ada", "another") is None


def test_adding_again_changes_password_and_role_and_keeps_the_tokens(users: Path) -> None:
    add(users)
    assert run(users, "token", "ada").exit_code == 0
    add(users, role="viewer", password="a new password")
    assert Users(users).check_password("ada", PASSWORD) is None
    assert Users(users).check_password("ada", "a new password") == identity("ada", "viewer")
    assert [*Users(users).read()["ada"].tokens] == ["default"]


def test_without_a_terminal_the_password_must_come_from_standard_input(users: Path) -> None:
    refused = run(users, "add", "ada", given=f"{PASSWORD}\n{PASSWORD}\n")
    assert refused.exit_code == 2 and "--password-stdin" in refused.stderr
    assert not users.exists()


@pytest.mark.parametrize("name", ["", "a" * 300, "a\x1b[31m"])
def test_a_bad_name_is_refused(users: Path, name: str) -> None:
    refused = run(users, "add", name, "--password-stdin", given=f"{PASSWORD}\n")
    assert refused.exit_code != 0 and "name" in refused.stderr and "\x1b" not in refused.stderr
    assert not users.exists()


def test_a_token_is_printed_once_and_stored_as_a_hash(users: Path) -> None:
    made = run(users, "token", "deploy", "--role", "operator", "--label", "ci")
    token = made.stdout.strip()
    assert made.exit_code == 0 and "shown only now" in made.stderr
    assert token not in users.read_text()
    deploy = Users(users).read()["deploy"]
    assert (deploy.role, deploy.password, deploy.tokens) == ("operator", None, {"ci": token_hash(token)})
    again = run(users, "token", "deploy", "--label", "ci").stdout.strip()
    assert Users(users).read()["deploy"].tokens == {"ci": token_hash(again)} and again != token


def test_a_token_does_not_change_a_role(users: Path) -> None:
    add(users, role="viewer")
    refused = run(users, "token", "ada", "--role", "admin")
    assert refused.exit_code != 0 and "ada is viewer: change the role with holdfast web-user add" in refused.stderr
    assert Users(users).read()["ada"].role == "viewer"


def test_users_are_listed_without_hashes(users: Path) -> None:
    add(users)
    run(users, "token", "deploy")
    listed = json.loads(run(users, "list", "--json").stdout)["users"]
    assert listed == [
        {"name": "ada", "role": "operator", "password": True, "tokens": []},
        {"name": "deploy", "role": "viewer", "password": False, "tokens": ["default"]},
    ]
    assert [line.split()[:3] for line in run(users, "list").stdout.splitlines()] == [
        ["NAME", "ROLE", "PASSWORD"],
        ["ada", "operator", "yes"],
        ["deploy", "viewer", "no"],
    ]


def test_a_token_or_a_user_is_removed(users: Path) -> None:
    add(users)
    run(users, "token", "ada", "--label", "ci")
    assert run(users, "remove", "ada", "--label", "ci").stdout == "Removed the token ci of ada.\n"
    assert Users(users).read()["ada"].tokens == {}
    assert run(users, "remove", "ada").stdout == "Removed ada.\n"
    assert Users(users).read() == {}
    missing = run(users, "remove", "ada")
    assert missing.exit_code != 0 and "has no user ada" in missing.stderr
