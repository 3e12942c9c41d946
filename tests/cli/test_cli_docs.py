"""docs/reference/cli.md: it is generated from the commands, is complete, and its examples print what it shows."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

from holdfast.cli import main
from holdfast.cli.main import Exit
from support.running_worker import PATIENCE_SECONDS

Run = Callable[..., Result]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.page() == PAGE, "run: python docs/generate_cli.py"


def commands(group: click.Group = main, path: str = "holdfast") -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None and command.name == name
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def test_every_command_is_on_the_page() -> None:
    assert [path for path, _ in commands() if path not in PAGE] == []


def test_no_placeholder_is_left_on_the_page() -> None:
    assert re.findall(r"\{\{.*", PAGE) == []


def test_every_option_is_on_the_page() -> None:
    options = {option for _, command in commands() for parameter in command.params for option in parameter.opts}
    written = {option for option in options if option.startswith("-")}
    assert {option for option in written if not re.search(rf"[`\s|\[]{option}\b", PAGE)} == set()


def test_every_exit_code_is_on_the_page() -> None:
    assert [code for code in Exit if f"| {code.value} |" not in PAGE] == []


def examples() -> list[tuple[str, str]]:
    """Return each command of the page with the output shown below it."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


# Times, durations and names of processes differ from run to run, and with them the widths of columns.
DIFFERS = {
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?": "TIME",
    r"^\d\d:\d\d:\d\d": "TIME",
    r"<?\b\d+(\.\d+)? ?ms\b|\b\d+(\.\d+)? s\b": "SPAN",
    r"\b(\d+[hm] )?\d+(\.\d+)?[hms]\b": "SPAN",
    r'(?<=_age":)[\d.]+': "SPAN",
    r"\b\d+-[0-9a-f]{12}\b|\b[0-9a-f]{16}\b": "PROCESS",
    r" +": " ",
}


def alike(text: str) -> str:
    for pattern, word in DIFFERS.items():
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text.strip()


def matches(printed: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in alike(expected).split("…"))
    return re.fullmatch(pattern, alike(printed)) is not None


def needs_a_shell(command: str) -> bool:
    """Return whether it cannot run in this process: workers, and commands that import the user's code."""
    words = shlex.split(command)
    return words[0] != "holdfast" or words[1] == "worker" or bool({"|", ">", "--app"} & set(words))


def printed_by(command: str, folder: Path, run: Run) -> str:
    if not needs_a_shell(command):
        return run(*shlex.split(command)[1:]).output
    ended = subprocess.run(
        ["sh", "-c", f"{command} 2>&1"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    return ended.stdout


def test_the_examples_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    (app,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "tasks.py").write_text(app, encoding="utf-8")
    (tmp_path / "holdfast").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m holdfast "$@"\n')
    (tmp_path / "holdfast").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for command, expected in examples():
        if command.startswith("export "):
            monkeypatch.setenv(*command.removeprefix("export ").split("=", 1))
            continue
        printed = printed_by(command, tmp_path, run)
        assert matches(printed, expected), f"$ {command}\n{printed}"


def test_there_are_examples() -> None:
    assert len(examples()) > 20
    assert sum(needs_a_shell(command) for command, _ in examples()) > 5
