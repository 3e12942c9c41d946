"""The threat model: each line of docs/internals/threat-model.md names a test, and some of these tests are here."""

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, JobError
from holdfast.contrib import prometheus
from support.running_worker import drain

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/internals/threat-model.md").read_text()
PACKAGE = Path(holdfast.__file__).parent
RUNS_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "code", "codeop", "yaml"}
IMPORTS_BY_NAME = {"supervisor/load.py", "lazy.py"}  # what a person gave to a command; parts of this package


def attacks() -> list[str]:
    return [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| attack", "|---"))]


@pytest.mark.parametrize("line", attacks(), ids=lambda line: line.split("|")[1].strip()[:60])
def test_each_line_of_the_page_names_tests_that_exist(line: str) -> None:
    named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", line.split("|")[-2])
    assert named, "no test is named"
    for file, name in named:
        functions = [
            node for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        ]
        assert name in {one.name for one in functions}, f"{file} has no {name}"


def test_no_module_runs_code_from_data() -> None:
    for file in PACKAGE.rglob("*.py"):
        place = file.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not RUNS_CODE & {one.name.split(".")[0] for one in node.names}, place
            elif isinstance(node, ast.ImportFrom):
                assert node.level or str(node.module).split(".")[0] not in RUNS_CODE, place
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "compile", "os.system", "os.popen"), place
                if called.split(".")[-1] in ("import_module", "__import__"):
                    assert place in IMPORTS_BY_NAME, f"{place} imports by name"


def test_no_module_opens_connections_to_where_a_payload_says() -> None:
    clients = {"urllib.request", "http.client", "httpx", "requests", "aiohttp", "ftplib", "smtplib", "xmlrpc.client"}
    for file in PACKAGE.rglob("*.py"):
        place = file.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{one.name}" for one in node.names)]
            assert not clients & set(names), place


@pytest.mark.parametrize(
    "name", ["this", "this:zen", "os.system", "__main__.main", "holdfast.demo:app", "../this.py"]
)
def test_a_stored_name_is_never_imported(app: Holdfast, name: str) -> None:
    """`this` is a module that nothing has imported, and that prints when it is."""
    sys.modules.pop("this", None)

    @app.task
    def work() -> str:
        return "done"

    app.store.database.change(  # type: ignore[attr-defined]
        'INSERT INTO holdfast_jobs (task, args) VALUES (?, \'{"command": "true"}\')', (name,)
    )
    other = work.enqueue()
    drain(app)
    assert other.refresh().status == "succeeded"
    (job,) = app.jobs.list(task=name)
    assert (job.status, job.attempt) == ("ready", 0)
    assert "this" not in sys.modules


def test_a_stored_error_does_not_become_an_exception_of_its_name(app: Holdfast) -> None:
    @app.task(max_attempts=1)
    def work() -> None:
        raise JobError("KeyboardInterrupt:SystemExit".upper(), "SystemExit(3)")

    job = work.enqueue()
    drain(app)
    with pytest.raises(Exception, match="KEYBOARDINTERRUPT:SYSTEMEXIT") as raised:
        job.wait(timeout=0)
    assert type(raised.value).__module__ == "holdfast.errors"
    assert raised.value.__cause__ is None


def test_metrics_are_served_on_loopback(app: Holdfast) -> None:
    given: dict[str, Any] = {
        name: one.default for name, one in inspect.signature(prometheus.serve).parameters.items()
    }
    assert given["host"] == "127.0.0.1"
    server = prometheus.serve(app, 0)
    try:
        assert server.host == "127.0.0.1" and server.url.startswith("http://127.0.0.1:")
    finally:
        server.close()
