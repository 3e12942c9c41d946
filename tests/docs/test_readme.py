"""The README, the tutorial and the guides are programs: their blocks run, and print what the page says.

The blocks of a page run in order, in an empty folder. Python blocks share one namespace; a block whose first line is
a comment with a file name is written to that file instead. The commands of `console` blocks are run. A `text` block
right after a Python block is the expected output; `…` in it matches anything. Waits may take as long as the machine
needs, whatever `timeout=` a page gives them.
"""

import contextlib
import importlib
import io
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from support import console
from support.running_worker import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
# How long an example waits for something that happens: `job.wait(timeout=5)`, `begun.wait(timeout=10)`.
_WAIT = re.compile(r"(\.(?:wait|wait_chain|await_result|await_chain)\([^()\n]*\btimeout=)[1-9]\d*\b")


class Step(NamedTuple):
    line: int
    kind: str
    code: str
    prints: str | None


def steps(page: Path) -> Iterator[Step]:
    text = page.read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] in ("python", "console"):
            expected = following[2] if following is not None and following[1] == "text" else None
            if expected is not None and text[block.end() : following.start()].strip():
                expected = None  # there is text in between: it is not this block's output
            yield Step(text[: block.start()].count("\n") + 2, block[1], block[2], expected)


def matches(printed: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    console.make_command(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for step in steps(page):
            if step.kind == "console":
                run_commands(page, step, tmp_path)
            elif file := _FILE.match(step.code):
                (tmp_path / file[1]).parent.mkdir(exist_ok=True)
                (tmp_path / file[1]).write_text(step.code, encoding="utf-8")
                importlib.invalidate_caches()
            else:
                run_python(page, step, names)
    finally:
        close_all(names)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
                close_all(vars(module))
                del sys.modules[name]


def run_python(page: Path, step: Step, names: dict[str, Any]) -> None:
    # Leading empty lines give errors the line numbers of the page.
    code = compile("\n" * (step.line - 1) + patient(step.code), str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, names)
    printed = output.getvalue()
    if step.prints is not None:
        assert matches(printed, step.prints), f"{page.name}:{step.line} printed:\n{printed}"


def patient(code: str) -> str:
    return _WAIT.sub(rf"\g<1>{PATIENCE_SECONDS}", code)


def run_commands(page: Path, step: Step, folder: Path) -> None:
    for command, expected in console.commands(step.code):
        printed = console.run(command, expected, folder)
        assert console.matches(printed, expected), f"{page.name}:{step.line}: $ {command}\n{printed}"


def close_all(names: dict[str, Any]) -> None:
    for thing in names.values():
        if isinstance(thing, (Holdfast, sqlite3.Connection)):
            thing.close()
        elif isinstance(thing, subprocess.Popen) and thing.poll() is None:
            thing.kill()
            thing.wait()


NEEDS_A_SERVER = ["postgresql.md"]


def test_every_page_has_something_to_run() -> None:
    assert [page.name for page in PAGES if not list(steps(page))] == NEEDS_A_SERVER


def test_an_output_with_an_ellipsis_matches_anything_there() -> None:
    assert matches("job 17 is ready\n", "job … is ready")
    assert not matches("job 17 is done\n", "job … is ready")


def test_only_waits_for_something_that_happens_are_patient() -> None:
    assert patient("job.wait(timeout=5)") == f"job.wait(timeout={PATIENCE_SECONDS})"
    assert (
        patient("job.wait_chain(last=ship, timeout=30)") == f"job.wait_chain(last=ship, timeout={PATIENCE_SECONDS})"
    )
    for other in ("job.wait(timeout=0.05)", "job.wait(timeout=0)", "@app.task(timeout=30)", "work.using(timeout=5)"):
        assert patient(other) == other
