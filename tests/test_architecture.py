"""The shape of the code, as the design draws it: imports point down, SQL is in one place, payloads stay private."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.errors import HoldfastError
from holdfast.failure import Failure
from holdfast.model.job import NewJob
from holdfast.model.outcome import Then
from holdfast.store.sqlite.diagnose import SAMPLES
from support.transitions import claim_tasks, succeed

PACKAGE = Path(holdfast.__file__).parent

PURE = [
    "model",
    "errors",
    "clock",
    "codec",
    "failure",
    "retry_policies",
    "cron",
    "retention",
    "context",
    "validate",
    "text",
    "blobs",
    "fold",
    "lazy",
]
SIBLINGS = ["app", "worker", "upkeep", "observe"]
# From the bottom up. A part may import its own layer's pure modules and whatever lies below, never above.
LAYERS = [PURE, ["store"], SIBLINGS, ["web"], ["supervisor"], ["contrib", "testing"], ["cli"]]
LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}

FOR_TYPE_CHECKERS = {"context.py: app.job", "context.py: app.workflows"}  # the types of ctx.job and ctx.batch
SHORTEST_MODULE = 25  # lines
SHORT_FOR_A_REASON = {
    "__main__.py": "`python -m holdfast`",
    "lazy.py": "imported by the root package, before anything else",
}
NEEDS_NOTHING_OF_THE_SYSTEM = {"sqlite3", "threading", "socket", "subprocess", "asyncio", "multiprocessing", "select"}
FORBIDDEN = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
IMPORTERS = {
    "supervisor/load.py",  # the program that the person at the command line named
    "lazy.py",  # our own modules, by names that stand in the code
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
SQL = re.compile(
    r"\b(SELECT\s.+\sFROM|INSERT\s+(OR\s+\w+\s+)?INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM|CREATE\s+(TABLE|INDEX|TRIGGER)"
    r"|BEGIN\s+(IMMEDIATE|EXCLUSIVE|DEFERRED)|^(COMMIT|ROLLBACK|SAVEPOINT\b.*|PRAGMA\b.*|VACUUM)$)",
    re.DOTALL,
)

MODULES = sorted(PACKAGE.rglob("*.py"))


def named(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def part_of(file: Path) -> str:
    """The top-level part a file belongs to: 'app' for app/queue.py, 'model' for model.py."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports(file: Path) -> Iterator[str]:
    """All of them, with relative ones made absolute; those under TYPE_CHECKING and inside functions too."""
    package = ("holdfast", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom) and f"{named(file)}: {node.module}" in FOR_TYPE_CHECKERS:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def parts_imported(file: Path) -> set[str]:
    names = (name.split(".") for name in imports(file))
    return {name[1] for name in names if name[0] == "holdfast" and len(name) > 1}


def texts(file: Path) -> Iterator[str]:
    """The strings of a module that are not documentation."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def test_every_part_has_its_place_in_the_layers() -> None:
    parts = {part_of(file) for file in MODULES} - {"__init__", "__main__"}
    assert parts - LEVEL.keys() == set(), "say in DESIGN.md and here where it belongs"


@pytest.mark.parametrize("file", MODULES, ids=named)
def test_imports_point_down_only(file: Path) -> None:
    part = part_of(file)
    if part in ("__init__", "__main__"):
        return
    for other in parts_imported(file) - {part, "__version__"}:
        if LEVEL[part] == 0:
            assert other in PURE, f"{part} is pure and imports {other}"
        else:
            assert LEVEL[other] < LEVEL[part], f"{part} imports {other}, which is not below it"


@pytest.mark.parametrize("file", [file for file in MODULES if part_of(file) in PURE], ids=named)
def test_pure_modules_know_no_files_threads_or_sockets(file: Path) -> None:
    assert {name.split(".")[0] for name in imports(file)} & NEEDS_NOTHING_OF_THE_SYSTEM == set()


def test_only_the_store_speaks_sql() -> None:
    elsewhere = [file for file in MODULES if part_of(file) != "store"]
    found = {named(file): text for file in elsewhere for text in texts(file) if SQL.search(text)}
    assert found == {}
    assert {named(file) for file in elsewhere if "sqlite3" in set(imports(file))} == set()
    assert [named(file) for file in PACKAGE.rglob("*.sql") if part_of(file) != "store"] == []


def test_the_search_for_sql_would_find_some() -> None:
    store = [file for file in MODULES if part_of(file) == "store"]
    assert len({named(file) for file in store for text in texts(file) if SQL.search(text)}) >= 4


def test_one_dialect_does_not_know_the_other() -> None:
    for dialect, others in {"sqlite": ["postgres"], "postgres": ["sqlite"]}.items():
        for file in (PACKAGE / "store" / dialect).rglob("*.py"):
            known = {name.split(".")[2] for name in imports(file) if name.startswith("holdfast.store.")}
            assert known & set(others) == set(), named(file)


def imported_modules(file: Path) -> set[Path]:
    """The modules of the package that are loaded with this one: imports outside functions and type checking."""
    package = ("holdfast", *file.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in tree(file).body:
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            names = [*base, *(node.module.split(".") if node.module else [])]
            if names[:1] == ["holdfast"]:
                here = PACKAGE.joinpath(*names[1:])
                for alias in node.names:
                    options = (here / f"{alias.name}.py", here / alias.name / "__init__.py", here.with_suffix(".py"))
                    found |= {next((one for one in options if one.exists()), here / "__init__.py")}
    return found - {file}


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = {file: imported_modules(file) for file in MODULES}
    assert sum(map(len, left.values())) > 300, "the search for imports finds some"
    while free := [file for file, needs in left.items() if not needs & left.keys()]:
        for file in free:
            del left[file]
    assert sorted(map(named, left)) == []


def test_no_two_classes_have_the_same_name() -> None:
    names = Counter(node.name for file in MODULES for node in tree(file).body if isinstance(node, ast.ClassDef))
    assert len(names) > 200
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_is_short_for_a_reason() -> None:
    modules = [file for file in MODULES if file.name != "__init__.py"]
    lengths = {named(file): len(file.read_text(encoding="utf-8").splitlines()) for file in modules}
    assert {name for name, lines in lengths.items() if lines < SHORTEST_MODULE} == SHORT_FOR_A_REASON.keys()


def test_packages_hold_names_and_no_code() -> None:
    for file in PACKAGE.rglob("__init__.py"):
        made = [
            node for node in tree(file).body if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While))
        ]
        assert made == [], named(file)


def test_nothing_can_run_what_it_has_read() -> None:
    for file in MODULES:
        assert {name.split(".")[0] for name in imports(file)} & FORBIDDEN == set(), named(file)
        called = {
            node.func.id
            for node in ast.walk(tree(file))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert called & FORBIDDEN_CALLS == set(), named(file)
        if named(file) not in IMPORTERS:
            assert not {name for name in imports(file) if name.startswith("importlib")}, named(file)


def test_nothing_writes_insert_or_replace() -> None:
    for file in [*MODULES, *PACKAGE.rglob("*.sql")]:
        assert not re.search(r"INSERT\s+OR\s+REPLACE|\bREPLACE\s+INTO", file.read_text(encoding="utf-8")), named(file)


def test_every_exception_stands_in_one_module() -> None:
    def all_below(kind: type[BaseException]) -> Iterator[type[BaseException]]:
        for child in kind.__subclasses__():
            yield child
            yield from all_below(child)

    ours = {kind for kind in all_below(HoldfastError) if kind.__module__.startswith("holdfast")}
    assert {kind for kind in ours if kind.__module__ != "holdfast.errors"} == set()
    assert all(kind.__doc__ for kind in ours)


# --- payloads stay private ------------------------------------------------------------------------

SECRET = "the-secret-payload"


def test_no_repr_shows_a_payload(app: Holdfast) -> None:
    @app.task
    def work(word: str) -> str:
        return word

    inbox = app.queue("inbox")
    inbox.send({"word": SECRET})
    message = inbox.receive()
    job = work.using(tags=["t"]).enqueue(SECRET)
    (claimed,) = claim_tasks(app.store, None, ["work"], 1, 30 * SECOND, "worker")
    succeed(app.store, claimed.lease, msgspec.json.encode(SECRET).decode())
    assert job.wait(1) == SECRET
    shown = [app, inbox, message, work, work.using(delay=5), job, app.jobs, app.jobs.list(), app.jobs.get(job.id)]
    shown += [*app.jobs.history(job.id), Then(work, SECRET), app.tasks]
    for one in shown:
        assert SECRET not in repr(one) and SECRET not in str(one)
    for one in (message, job, work, inbox):
        assert len(repr(one)) > 10 and " object at 0x" not in repr(one), "a repr for a person"


def test_no_value_on_the_way_shows_a_payload_either(app: Holdfast) -> None:
    """They stand in tracebacks of tools that print locals, and in a debugger's log."""
    new = NewJob(queue="q", task="work", args=f'{{"word": "{SECRET}"}}')
    inserted = app.store.jobs.insert(new)
    record = app.store.jobs.get(inserted.id)
    claimed = claim_tasks(app.store, None, ["work"], 1, 30 * SECOND, "worker")
    values: list[Any] = [new, inserted, inserted.record(new), record, claimed]
    assert [type(one).__name__ for one in values if SECRET in repr(one)] == []


def test_an_error_of_a_damaged_payload_does_not_show_it(app: Holdfast) -> None:
    app.queue("inbox").send({"word": SECRET})
    assert app.queue("inbox", type=int).receive() is None
    (dead,) = app.queue("inbox").dead_letters()
    assert SECRET not in f"{dead.error_detail}{app.jobs.history(dead.id)}"
    assert SECRET not in repr(Failure("INTERNAL:X", "detail"))


def test_every_public_name_is_there_and_is_imported_only_when_it_is_asked_for() -> None:
    code = (
        "import sys, holdfast\n"
        "early = sorted(name for name in sys.modules if name.startswith('holdfast.') and name != 'holdfast.lazy')\n"
        "assert not early, early\n"
        "from holdfast import *\n"
        "assert all(name in globals() and name in dir(holdfast) for name in holdfast.__all__)\n"
        "assert not hasattr(holdfast, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Their names are put together.
PUT_TOGETHER = {
    *(f"expired_{rows}" for rows in ("minutes", "failures", "tracebacks", "audit")),
    *(f"count_expired_{rows}" for rows in ("minutes", "failures", "tracebacks", "audit")),
    *(f"{action}_schedule" for action in ("remove", "pause", "resume")),
    *("events_after", "events_of_job_after", "last_events", "last_events_of_job"),
}


def test_every_statement_is_used() -> None:
    named = {
        name
        for file in (PACKAGE / "store" / "sqlite" / "sql").glob("*.sql")
        for name in re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named -= set(SAMPLES)  # the doctor runs all of them
    code = "\n".join(file.read_text(encoding="utf-8") for file in (PACKAGE / "store").rglob("*.py"))
    used = set(re.findall(r"\b_?sql\.(\w+)", code)) | set(re.findall(r'"(\w+)"', code))
    assert named - used == PUT_TOGETHER


OF_SQLITE_ONLY = {
    "end_leases_of_another_boot",  # leases are times of the server
    "end_workers_of_another_boot",
    "end_blocks_of_another_boot",
}


def test_both_stores_have_the_statements_that_their_parts_share() -> None:
    shared = [file.name for file in (PACKAGE / "store" / "postgres" / "sql").glob("*.sql")]
    of_sqlite, of_postgres = (
        {
            name
            for file in (PACKAGE / "store" / store / "sql").glob("*.sql")
            if file.name in shared
            for name in re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        }
        for store in ("sqlite", "postgres")
    )
    assert of_sqlite - of_postgres == OF_SQLITE_ONLY, "write it for PostgreSQL, too"


def test_every_method_of_the_store_has_a_caller_above_it() -> None:
    above = [file for file in PACKAGE.rglob("*.py") if "store" not in file.relative_to(PACKAGE).parts]
    called = {node.attr for file in above for node in ast.walk(tree(file)) if isinstance(node, ast.Attribute)}
    kinds = [one for one in tree(PACKAGE / "store" / "protocol.py").body if isinstance(one, ast.ClassDef)]
    offered = {
        one.name: kind.name
        for kind in kinds
        if kind.name != "StatementObserver"  # of the tests; the store calls it
        for one in kind.body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
    }
    assert {name: kind for name, kind in offered.items() if name not in called} == {}


def test_jobs_have_at_most_five_triggers() -> None:
    """Every transition pays for each of them."""
    schema = (PACKAGE / "store" / "sqlite" / "migrations" / "0001_schema.sql").read_text(encoding="utf-8")
    assert len(re.findall(r"^CREATE TRIGGER \S+ AFTER [A-Z ]+[^\n]* ON \{p\}jobs\b", schema, re.MULTILINE)) <= 5


def test_every_constraint_has_a_name() -> None:
    schema = (PACKAGE / "store" / "sqlite" / "migrations" / "0001_schema.sql").read_text(encoding="utf-8")
    text = re.sub(r"--[^\n]*", "", schema)
    checks, named = len(re.findall(r"\bCHECK\b", text)), re.findall(r"\bCONSTRAINT (\w+)", text)
    assert checks <= len(named)
    assert len(set(named)) == len(named), "a name tells one constraint"


def test_every_transition_says_why_or_that_it_does_not() -> None:
    """A reason that was left over would be told again with the next event."""
    for file in (PACKAGE / "store" / "sqlite" / "sql").glob("*.sql"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if "revision = revision + 1" in line and "transition = " in line:
                assert "reason = " in line, f"{file.name}: {line}"
