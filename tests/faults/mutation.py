"""Mutation: remove or invert each condition of the statements that move jobs and fold events, one at a time.

A mutant is the same statement, trigger or function with one condition changed. The tests next to it must fail for
each. A mutant that they let live is a violation, unless EQUIVALENT says why it cannot make a difference.

The tests of each mutant run in a process of their own, forked from one that has loaded everything
(`python -m faults.mutation`). There the loader of the statements returns the changed one.
"""

import ast
import importlib
import inspect
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

import holdfast
from faults.report import Report

SHORT = 0.006
TESTS = Path(__file__).parents[1]
PACKAGE = Path(holdfast.__file__).parent
SQL, SCHEMA = PACKAGE / "store/sqlite/sql", PACKAGE / "store/sqlite/migrations/0001_schema.sql"
PROCESSES = max(2, os.cpu_count() or 2)
FEW = 20  # mutants that one process tries sooner than two: it has to load all tests first
HANG_SECONDS = 120.0
PATIENCE_SECONDS = 30.0  # of tests that wait for what a mutant never does

STATEMENTS = {
    "claim.sql": None,  # all
    "settle.sql": None,
    "worker.sql": {"return_all", "recover_lost", "recover_lost_spent", "renew_for", "workers_with_expired_leases"},
    "statistics.sql": {
        "last_event_to_fold",
        "event_groups",
        "event_failures",
        "move_fold",
        "delete_empty_counts",
        "event_zones",
        "delete_empty_zones",
        "removed_jobs",
        "delete_events_of_removed",
    },
}
MODULES: dict[str, tuple[str, set[str]]] = {
    "fold.py": ("holdfast.fold", {"Sums", "fold", "_add_failure"}),
    "statistics.py": ("holdfast.store.statistics", {"Zone", "_rows"}),  # what is pure; the rest runs statements
}
CONDITIONS = "sqlite/test_conditions.py"
NEAREST = {
    "claim.sql": CONDITIONS,
    "settle.sql": CONDITIONS,
    "worker.sql": CONDITIONS,
    "statistics.sql": CONDITIONS,
    "schema": "sqlite/test_trigger_conditions.py",
    "fold.py": "pure/test_fold.py",
    "statistics.py": "pure/test_fold.py",
}
"""The tests of each group. Of CONDITIONS, a mutant is tried with those that name its statement."""
QUICK = {"claim.sql", "settle.sql", "worker.sql", "statistics.sql", "schema"}  # in the short form

GUARD = "The WHEN saves the run of the trigger. The statements in it have the condition themselves."
EXPIRES = "expires_at <= :now is not true of NULL. The condition is that of the index."
QUEUE = "Every queue is a text and so not less than ''. The condition lets SQLite search the index."
EQUIVALENT = {
    "ready_pairs: without queue IS NOT NULL": "Ends the search after the last queue. Later steps are left out.",
    "ready_pairs: without step <= :most": "The LIMIT ends the search at the same step, or before it.",
    "claim_one: without attempt < max_attempts": "The constraint ready_has_attempts_left forbids such a ready job.",
    "next_due: without expires_at IS NOT NULL": "min() skips NULL. The condition is that of the index.",
    "ready_pairs: without expires_at IS NOT NULL": EXPIRES,
    "ready_pairs_in: without expires_at IS NOT NULL": EXPIRES,
    "ready_pairs: without queue >= ''": QUEUE,
    "ready_pairs_in: without queue >= ''": QUEUE,
    "events_deleted: without OLD.job_id IS NOT NULL": GUARD,
    "events_folded: without NEW.cursor > OLD.cursor": "No event lies between a cursor and an earlier one.",
    "jobs_noted: without (NEW.chain_id IS NOT NULL OR NEW.awaited OR NEW.batch_id IS NOT NULL)": GUARD,
    "jobs_noted: without NOT NEW.continued": GUARD,
    "jobs_noted: without NEW.revision = OLD.revision": GUARD,
    "jobs_noted: without OLD.status <> 'new'": GUARD,
    "jobs_noted: without OLD.status <> 'new' (2)": "Only jobs_filled_in leaves 'new'. It changes no queue or task.",
}
"""Mutants that no test can notice, by name, and why."""


class Mutant(msgspec.Struct, frozen=True):
    """group: a key of NEAREST. place: the statement, trigger or function. text: all of it, changed."""

    group: str
    place: str
    change: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.place}: {self.change}"


# --- SQL ---

TOKEN = re.compile(r"'(?:[^']|'')*'|\{p\}\w+|[:?]\w*|\w+|<>|<=|>=|\|\||[^\s\w]")
BEGINS = {"WHERE", "ON", "WHEN"}
ENDS = BEGINS | {"ORDER", "GROUP", "LIMIT", "RETURNING", "UNION", "THEN", "BEGIN", "SET", "CROSS", "DO", "ELSE", ";"}


class Tokens:
    """The tokens of a statement, with their places in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = list(TOKEN.finditer(text))
        self.words = [one[0].upper() if one[0][0] != "'" else one[0] for one in found]
        self.spans = [one.span() for one in found]
        self.depths: list[int] = []
        depth = 0
        for word in self.words:
            depth -= word == ")"
            self.depths.append(depth)
            depth += word == "("

    def conditions(self) -> Iterator[tuple[int, int]]:
        """Each range of tokens after WHERE, ON or WHEN, except ON in ON CONFLICT and AFTER … ON a table."""
        is_header = "TRIGGER" in self.words
        for first, word in enumerate(self.words):
            if is_header and word in ("WHEN", "BEGIN"):
                is_header = False
            if word in BEGINS and not is_header and self.words[first + 1] != "CONFLICT":
                yield first + 1, self._end(first)

    def _end(self, first: int) -> int:
        for number in range(first + 1, len(self.words)):
            depth = self.depths[number]
            if depth < self.depths[first] or (depth == self.depths[first] and self.words[number] in ENDS):
                return number
        return len(self.words)

    def split(self, first: int, last: int, by: str) -> list[tuple[int, int]]:
        """Cut a condition at AND or OR, outside of brackets."""
        parts, begun = [], first
        for number in range(first, last):
            if self.words[number] == by and self.depths[number] == self.depths[first]:
                parts.append((begun, number))
                begun = number + 1
        return [*parts, (begun, last)]

    def replaced(self, first: int, last: int, by: str) -> str:
        begin, end = self.spans[first][0], self.spans[last - 1][1]
        return f"{self.text[:begin]}{by}{self.text[end:]}"

    def words_of(self, first: int, last: int) -> str:
        return " ".join(self.text[self.spans[first][0] : self.spans[last - 1][1]].split())


def changes_of(text: str) -> Iterator[tuple[str, str]]:
    """Each change of a condition of a statement, and the statement that it makes."""
    tokens = Tokens(text)
    for first, last in tokens.conditions():
        yield from _changes(tokens, first, last, alone=True)


def _changes(tokens: Tokens, first: int, last: int, alone: bool) -> Iterator[tuple[str, str]]:
    either = tokens.split(first, last, "OR")
    for begin, end in either:
        if len(either) > 1:
            words = tokens.words_of(begin, end)
            yield f"without OR {words}", tokens.replaced(begin, end, f"(0 AND ({words}))")
        every = tokens.split(begin, end, "AND")
        for one, stop in every:
            words = tokens.words_of(one, stop)
            if len(every) > 1 or (alone and len(either) == 1):
                # It stays in the text: the number of parameters must be the same.
                yield f"without {words}", tokens.replaced(one, stop, f"(1 OR ({words}))")
            yield f"not {words}", tokens.replaced(one, stop, f"NOT ({words})")
            inner = one + (tokens.words[one] == "NOT")
            if tokens.words[inner] == "(" and tokens.words[stop - 1] == ")" and tokens.words[inner + 1] != "SELECT":
                yield from _changes(tokens, inner + 1, stop - 1, alone=False)


def without_comments(text: str) -> str:
    return "\n".join(line for line in (re.sub(r"--.*", "", one).rstrip() for one in text.splitlines()) if line)


def sql_mutants() -> Iterator[Mutant]:
    for file, wanted in STATEMENTS.items():
        _, *blocks = re.split(r"^-- name: (\w+)\s*$", (SQL / file).read_text(), flags=re.MULTILINE)
        for name, text in zip(blocks[::2], blocks[1::2], strict=True):
            if wanted is None or name in wanted:
                yield from (Mutant(file, name, *change) for change in changes_of(without_comments(text)))
    for name, text in triggers().items():
        yield from (Mutant("schema", name, *change) for change in changes_of(text))


def triggers() -> dict[str, str]:
    found = re.findall(r"^CREATE TRIGGER .*?^END;", without_comments(SCHEMA.read_text()), re.MULTILINE | re.DOTALL)
    return {text.split()[2].removeprefix("{p}"): text for text in found}


# --- Python ---


class _Change(ast.NodeTransformer):
    """Changes the condition with this number."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.seen, self.what = wanted, 0, ""

    def _change(self, what: str, node: ast.expr, changed: ast.expr) -> ast.expr:
        self.seen += 1
        if self.seen != self.wanted:
            return node
        self.what = f"{what} {ast.unparse(node)}"
        return ast.copy_location(changed, node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        return self._change("not", node, ast.UnaryOp(ast.Not(), node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        gone = ast.Constant(isinstance(node.op, ast.And))
        node.values = [self._change("without", value, gone) for value in node.values]
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.ifs = [self._change("without if", one, ast.Constant(True)) for one in node.ifs]
        return node

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        node.test = self._change("without if", node.test, ast.Constant(True))
        return node


def python_mutants() -> Iterator[Mutant]:
    for group, (module, wanted) in MODULES.items():
        source = (PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_text()
        for number in range(1, 10_000):
            change = _Change(number)
            tree = ast.parse(source)
            for one in tree.body:
                if getattr(one, "name", "") in wanted:
                    change.visit(one)
            ast.fix_missing_locations(tree)
            if not change.what:
                break
            yield Mutant(group, module, change.what, ast.unparse(tree))


def all_mutants() -> list[Mutant]:
    """Every mutant once. Those with the same name are numbered."""
    named: dict[str, Mutant] = {}
    for one in (*sql_mutants(), *python_mutants()):
        number, change = 1, one.change
        while f"{one.place}: {change}" in named:
            number += 1
            change = f"{one.change} ({number})"
        named[f"{one.place}: {change}"] = msgspec.structs.replace(one, change=change)
    return list(named.values())


# --- the process that tries them ---


def apply(mutant: Mutant, folder: Path) -> None:
    """Let Holdfast use the mutant, in this process."""
    if mutant.group in STATEMENTS:
        from holdfast.store import statements

        original = statements._named

        def changed(folder: Path, prefix: str) -> dict[str, str]:
            return original(folder, prefix) | {mutant.place: statements.with_prefix(mutant.text, prefix)}

        statements._named = changed  # type: ignore[assignment]
    elif mutant.group == "schema":
        from holdfast.store.sqlite import migrate

        schema = without_comments(SCHEMA.read_text())
        (folder / SCHEMA.name).write_text(schema.replace(triggers()[mutant.place], mutant.text))
        migrate.FOLDER = folder
    elif mutant.group in MODULES:
        module = importlib.import_module(mutant.place)
        changed_module = ModuleType(mutant.place)
        changed_module.__dict__.update(__package__=mutant.place.rpartition(".")[0])
        exec(compile(mutant.text, mutant.place, "exec"), changed_module.__dict__)
        _take_code(module, changed_module)


def _take_code(old: Any, new: Any) -> None:
    """Give all functions of a module, and of its classes, the code of those of the same name."""
    for name, one in vars(old).items():
        other = vars(new).get(name)
        if isinstance(one, FunctionType) and isinstance(other, FunctionType) and one.__module__ == old_name(old):
            code: CodeType = other.__code__
            one.__code__ = code
        elif isinstance(one, type) and isinstance(other, type) and one.__module__ == old_name(old):
            _take_code(one, other)


def old_name(one: Any) -> str:
    return str(one.__name__ if isinstance(one, ModuleType) else one.__module__)


class Collected:
    """A plugin of pytest that keeps the tests it has found."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._sources: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self.items += items
        self._sources |= {one.nodeid: inspect.getsource(one.function) for one in items}

    def nearest(self, mutant: Mutant) -> list[str]:
        """The tests of a mutant. Of CONDITIONS, only those with the name of its statement in them."""
        chosen = []
        for one in self.items:
            file = str(one.path.relative_to(TESTS))
            if not any(file.startswith(wanted) for wanted in NEAREST[mutant.group].split()):
                continue
            given = one.callspec.params.values() if hasattr(one, "callspec") else ()
            if file != CONDITIONS or mutant.place in given or f'"{mutant.place}"' in self._sources[one.nodeid]:
                chosen.append(str(TESTS / file) + one.nodeid[one.nodeid.index("::") :])
        return chosen


def serve(*groups: str) -> None:
    """Read mutants of these groups, one a line; for each, print what the tests said in a forked process."""
    import pytest
    from hypothesis import HealthCheck, Phase, settings

    import support.backend
    import support.running_worker

    support.running_worker.PATIENCE_SECONDS = PATIENCE_SECONDS
    plain = [Phase.explicit, Phase.generate]  # a failure is enough: it need not be the smallest
    settings.register_profile(
        "plain", deadline=None, derandomize=True, database=None, phases=plain, suppress_health_check=list(HealthCheck)
    )
    usual = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=plain"]
    tests, collected = {one for group in groups for one in NEAREST[group].split()}, Collected()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # loads the modules of all tests
        pytest.main(["--collect-only", *usual, *(str(TESTS / one) for one in tests)], [collected])
    for line in sys.stdin:
        mutant = msgspec.json.decode(line, type=Mutant)
        with tempfile.TemporaryDirectory() as folder:
            output, nearest = Path(folder, "output"), collected.nearest(mutant)
            output.touch()
            if nearest and (pid := os.fork()) == 0:
                _run_in_child(mutant, output, ["-x", *usual, f"--basetemp={folder}/t", *nearest])
            said = _wait(pid) if nearest else 0  # no test names its statement: it survives
            failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output.read_text(), re.MULTILINE)
            answer = {"code": said, "test": failed[1] if failed else "", "tail": output.read_text()[-2000:]}
        print(json.dumps(answer), flush=True)


def _run_in_child(mutant: Mutant, output: Path, arguments: list[str]) -> None:
    """Apply the mutant, run the tests and end this process with what they return; 70 if that was not possible."""
    import pytest

    code = 70
    try:
        os.setsid()
        with output.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            schema = output.with_name("schema")
            schema.mkdir()
            apply(mutant, schema)
            code = int(pytest.main(arguments))
    except BaseException:  # noqa: BLE001  must not go on as the server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    """Wait for the process, and kill it and its children if it hangs. Return its code; -9 if it hung."""
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], HANG_SECONDS)
    finally:
        os.close(descriptor)
    done, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not done:
        os.waitpid(pid, 0)
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)


class Server:
    """Such a process, and the mutant that it tries."""

    def __init__(self, groups: set[str]) -> None:
        command = [sys.executable, "-m", "faults.mutation", *sorted(groups)]
        self._process = subprocess.Popen(
            command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.mutant: Mutant | None = None

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def begin(self, mutant: Mutant) -> None:
        assert self._process.stdin is not None
        self.mutant = mutant
        self._process.stdin.write(msgspec.json.encode(mutant).decode() + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def try_all(mutants: list[Mutant], told: Callable[[Mutant, dict[str, Any]], None]) -> None:
    """Try the mutants, several at a time, and tell what became of each."""
    left = mutants[::-1]
    groups = {one.group for one in mutants}
    servers = [Server(groups) for _ in range(PROCESSES if len(mutants) > FEW else 1)]
    try:
        for server in servers:
            server.begin(left.pop())
        busy = servers[:]
        while busy:
            for server in select.select(busy, [], [])[0]:
                assert server.mutant is not None
                told(server.mutant, server.result())
                if left:
                    server.begin(left.pop())
                else:
                    busy.remove(server)
    finally:
        for server in servers:
            server.end()


# --- the part of the laboratory ---

CONTROL = Mutant(
    "worker.sql",
    "return_all",
    "nothing",
    """UPDATE {p}jobs SET status = 'ready', worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    transition = 'returned', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE NOT NOT status = 'running' AND worker = :worker AND 1""",
)


def run(report: Report) -> None:
    """Try all mutants, or a part of them: those that are the same ones for a seed."""
    mutants = all_mutants()
    names = {one.name for one in mutants}
    chosen = [one for one in mutants if one.name not in EQUIVALENT]
    if report.only is not None:
        chosen = [mutants[report.only]]
    elif report.effort < 1:
        quick = [one for one in chosen if one.group in QUICK]
        chosen = random.Random(report.seed).sample(quick, report.scaled(len(quick)))
    else:
        for name in sorted(EQUIVALENT.keys() - names) if report.has_controls else ():
            report.violation(f"listed as equivalent, but there is no such mutant: {name}")
        chosen = list(report.mine(chosen))

    def told(mutant: Mutant, answer: dict[str, Any]) -> None:
        report.count("mutants")
        if answer["code"] == 1:
            report.count("killed")
            report.count(f"killed in {mutant.group}")
        elif answer["code"] == -signal.SIGKILL:
            report.count("killed by a hang")
        elif answer["code"] == 0:
            report.violation(f"survived: {mutant.name}", mutants.index(mutant))
        else:
            report.violation(f"tests did not run for {mutant.name}: {answer['tail']}", mutants.index(mutant))

    control = CONTROL if report.has_controls else None
    survived: list[bool] = []

    def told_control(mutant: Mutant, answer: dict[str, Any]) -> None:
        if mutant is control:
            survived.append(answer["code"] == 0)
        else:
            told(mutant, answer)

    try_all([*chosen, *([control] if control else [])], told_control)
    if report.has_controls:
        report.count("equivalent, by reason", len(EQUIVALENT))
    report.require("killed")
    if control is not None:  # otherwise the tests fail for another reason, and every mutant seems to be killed
        report.control("a mutant that changes nothing survives", survived == [True])


if __name__ == "__main__":
    serve(*sys.argv[1:])
