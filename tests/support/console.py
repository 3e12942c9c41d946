"""Commands as a document shows them: run in a folder, and what they print compared with what it says they print.

`…` stands for anything. Times, durations and names of processes may be others. A line `^C` means that the command is
interrupted when it has printed what stands above it. `timeout SECONDS` before a command counts from its first line,
since a slow machine may need as long to start it.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import main
from support.running_worker import PATIENCE_SECONDS

# These differ from run to run, and with them the widths of columns.
DIFFERS = {
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?": "TIME",
    r"^\d\d:\d\d:\d\d": "TIME",
    r"<?\b\d+(\.\d+)? ?ms\b|\b\d+(\.\d+)? s\b": "SPAN",
    r"\b(\d+[dhm] )?\d+(\.\d+)?[hms]\b|(?<= in )\d+d\b": "SPAN",
    r'(?<=_ms":)[\d.]+': "SPAN",
    r"\b\d+(\.\d+)? ([KMGT]i)?B\b": "SIZE",
    r"\b\d+-[0-9a-f]{12}\b|\b[0-9a-f]{16}\b": "PROCESS",
    r"(?<=process )\d+( on [\w.-]+)?|(?<=\bpid )\d+": "PROCESS",
    r"(?<=started on )\S*/": "FOLDER/",
    r" +": " ",
    r"(?<=PROCESS )\d+ [\w.-]+(?= SPAN ago)|(?<=SPAN ago )\d+ [\w.-]+(?= SPAN )": "PID HOST",
}


AT_ANY_SPEED = Path(__file__).parents[1] / "processes" / "command_at_any_speed.py"

TIMEOUT = re.compile(r"timeout --preserve-status (\d+) ")


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block with what is printed below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def alike(text: str) -> str:
    for pattern, word in DIFFERS.items():
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text.strip()


def matches(printed: str, expected: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in alike(expected.replace("^C\n", "")).split("…"))
    return re.fullmatch(pattern, alike(printed), re.DOTALL) is not None


def run(command: str, expected: str, folder: Path) -> str:
    """What it prints, on both of its outputs. The folder is the current one."""
    if needs_a_process(command, expected):
        return run_in_a_process(command, expected, folder)
    return CliRunner().invoke(main, shlex.split(command)[1:], prog_name="holdfast").output


def needs_a_process(command: str, expected: str) -> bool:
    """A worker does, what a shell puts together, and what imports the page's code or waits for a signal."""
    words = shlex.split(command)
    if words[0] != "holdfast" or words[1] == "worker" or "^C\n" in expected:
        return True
    return not {"|", ">", "--app"}.isdisjoint(words)


def make_command(folder: Path) -> None:
    """Make a program `holdfast` in which nothing depends on how fast the machine is."""
    python, script = shlex.quote(sys.executable), shlex.quote(str(AT_ANY_SPEED))
    (folder / "holdfast").write_text(f'#!/bin/sh\nexec {python} {script} "$@"\n')
    (folder / "holdfast").chmod(0o755)


def run_in_a_process(command: str, expected: str, folder: Path) -> str:
    make_command(folder)
    timeout = TIMEOUT.match(command)
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command[timeout.end() :] if timeout else command}"],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    timer = threading.Timer(PATIENCE_SECONDS, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        before, interrupted, _ = expected.partition("^C\n")
        lines = [process.stdout.readline() for _ in before.splitlines()] if interrupted else []
        if interrupted:
            process.send_signal(signal.SIGINT)
        if timeout:
            lines.append(process.stdout.readline())
            time.sleep(float(timeout[1]))
            process.send_signal(signal.SIGTERM)
        return "".join([*lines, process.communicate()[0]])
    finally:
        timer.cancel()
        process.kill()
        process.wait()
