"""The documentation is complete: the reference names everything public, and every link leads somewhere."""

import builtins
import importlib.util
import inspect
import re
import runpy
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.testing
from holdfast import Batch, Chain, Context, Holdfast, Job, Message, Page, Queue, Task, errors, failure, validate
from holdfast.app.app import BUSY_SECONDS, WORKER_BUSY_SECONDS, WorkerInfo
from holdfast.app.explain import Explanation
from holdfast.app.jobs import MAX_PAGE, Filters, HistoryEntry, Jobs
from holdfast.app.options import (
    LINK_OPTIONS,
    MAX_BLOCKERS,
    OPTIONS,
    EnqueueOptions,
    TaskDecoratorOptions,
    TaskOptions,
)
from holdfast.app.schedules import Schedule, Schedules
from holdfast.app.workflows import Batches, BatchProgress, Chains, Group, Step
from holdfast.blobs import LARGE_BYTES
from holdfast.cli.commands.worker import worker as worker_command
from holdfast.codec import MAX_BYTES, MAX_DEPTH
from holdfast.context import LastError
from holdfast.model import outcome, stats
from holdfast.model.job import STATUSES, NewJob
from holdfast.model.stats import EVENTS, QueueOverview, QueueStats
from holdfast.observe import Observe
from holdfast.retention import Retention, Rule
from holdfast.retry_policies import MAX_DELAY_SECONDS
from holdfast.store.blobs import LARGEST_INLINE_BYTES
from holdfast.store.claim import WINDOW_STEPS
from holdfast.store.enqueue import CHUNK_ROWS, _Insertion
from holdfast.store.schedules import EVENTS as EVENTS_OF_SCHEDULES
from holdfast.store.sqlite.database import CHANGES_PER_FOLD
from holdfast.store.sqlite.engine.transaction import CompletingTransaction, Transaction
from holdfast.store.sqlite.engine.writer import MAX_GROUP
from holdfast.store.statistics import FOLD_EVENTS
from holdfast.store.workers import ENDED_WORKERS_KEPT
from holdfast.store.workflow import MAX_RESOLVED
from holdfast.testing import Drained, FakeClock, Ran
from holdfast.upkeep.doctor.check import Checkup, Finding
from holdfast.upkeep.prune import PruneReport
from holdfast.upkeep.vacuum import VacuumReport
from holdfast.worker.dispatcher import MAX_BATCH
from holdfast.worker.housekeeping import MAX_STUCK
from holdfast.worker.worker import Worker, WorkerOptions, WorkerReport

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SQL = ROOT / "src" / "holdfast" / "store" / "sqlite"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
GENERATE = runpy.run_path(str(DOCS / "generate_reference.py"))
MEASURED = ROOT / "benchmarks" / "results.md"  # by `make bench`
MEASURED_ON_POSTGRES = ROOT / "benchmarks" / "postgres" / "results.md"  # by `make bench-postgres`
WRITTEN_LATER = {MEASURED, MEASURED_ON_POSTGRES}

OF_THE_STORE = {"WaitingJob", "FailureRecord", "MinuteRecord", "EventRecord", "Totals"}
CLASSES: list[type[Any]] = [Holdfast, Queue, Message, Task, Job, Jobs, Page, QueueStats, HistoryEntry, Transaction]
CLASSES += [Context, FakeClock, Drained, Ran, QueueOverview, Schedules, Schedule]
CLASSES += [Chain, Chains, Batch, Batches, BatchProgress, Step, Group, CompletingTransaction, Explanation]
CLASSES += [Worker, WorkerOptions, WorkerReport, WorkerInfo, LastError, Checkup, Finding]
CLASSES += [
    Observe,
    *(
        thing
        for name, thing in vars(stats).items()
        if isinstance(thing, type) and thing.__module__ == stats.__name__ and name not in OF_THE_STORE
    ),
]
CLASSES += [Retention, Rule, PruneReport, VacuumReport]
FOR_THE_PACKAGE_ITSELF = {"from_timeline", "from_status"}
FOR_THE_PACKAGE_ITSELF |= {"held", "give_up", "ring", "enlist_anew"}  # called by the parts of a worker


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def words_in_code(text: str) -> set[str]:
    """Return every word in backquotes or in a block of code."""
    blocks = re.findall(r"```.*?```", text, re.DOTALL)
    inline = re.findall(r"`[^`]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {word for part in blocks + inline for word in re.findall(r"\w+", part)}


def public_members(thing: type[Any]) -> Iterator[str]:
    known = {name for name in dir(thing) if not name.startswith("_")}
    known |= {name for name in getattr(thing, "__annotations__", {}) if not name.startswith("_")}
    return (name for name in sorted(known) if name not in dir(tuple))  # members of every sequence


def parameters(thing: type[Any]) -> Iterator[str]:
    functions = [
        getattr(thing, name) for name in public_members(thing) if inspect.isfunction(getattr(thing, name, None))
    ]
    for function in [thing.__init__, *functions] if thing in (Holdfast, FakeClock) else functions:
        yield from (name for name in inspect.signature(function).parameters if name not in ("self", "function"))


def test_the_figures_of_both_stores_have_the_names_that_the_guide_tells() -> None:
    section = read("guides/postgresql.md").partition("## Both stores measured")[2]
    rows = re.findall(r"^\| .* \| `([^`]+)` \| `([^`]+)` \|$", section, re.MULTILINE)
    assert len(rows) > 5
    sources = "".join(path.read_text(encoding="utf-8") for path in MEASURED_ON_POSTGRES.parent.glob("*.py"))
    for ours, theirs in rows:
        assert re.search(rf'[("]{re.escape(theirs)}', sources), theirs
        for name, page in ((ours, MEASURED), (theirs, MEASURED_ON_POSTGRES)):
            assert not page.exists() or f"\n| {name}" in page.read_text(encoding="utf-8"), name


def test_every_public_name_is_in_the_reference() -> None:
    names = {*holdfast.__all__, *holdfast.testing.__all__}
    assert names - words_in_code(read("reference/api.md")) == set()


def test_every_parameter_of_the_functions_for_tests_is_in_the_reference() -> None:
    page = read("reference/api.md").partition("## holdfast.testing")[2]
    functions = {name: getattr(holdfast.testing, name) for name in holdfast.testing.__all__ if name.islower()}
    assert {"inline", "drain", "assert_enqueued"} <= functions.keys()
    for name, function in functions.items():
        assert f"`{name}(" in page, name
        assert set(inspect.signature(function).parameters) - words_in_code(page) == set(), name


@pytest.mark.parametrize("thing", CLASSES, ids=lambda thing: thing.__name__)
def test_every_member_and_parameter_is_in_the_reference(thing: type[Any]) -> None:
    documented = words_in_code(read("reference/api.md"))
    assert {*public_members(thing), *parameters(thing)} - documented - FOR_THE_PACKAGE_ITSELF == set()


def test_every_option_and_filter_is_in_the_reference() -> None:
    assert set(Filters.__annotations__) - words_in_code(read("reference/api.md")) == set()
    settings = words_in_code(read("reference/settings.md"))
    for given in (Holdfast, Holdfast.worker):
        assert set(inspect.signature(given).parameters) - {"self"} - settings == set()


# A default in words, where the one of the signature says less.
IN_WORDS = {
    "url": "`$HOLDFAST_URL`",
    "busy_timeout": f"{BUSY_SECONDS:g}; {WORKER_BUSY_SECONDS:g} in a process that runs jobs",
    "min_free_bytes": "16 MiB",
    "guard_connections": "`True`",
    "notify": "`True`",
    "schema": '`"public"`',
    "retention": "what is in the database, or `Retention()`",
    "blobs": "files in `app.db-blobs`",
    "clock": "the system's",
    "random": "new",
    "type": "any JSON",
    "queues": "all",
    "pool": "one per core",
    "catch_up_limit": "100",
}


@pytest.mark.parametrize(
    ("section", "function"),
    [
        ("`Holdfast`", Holdfast),
        ("a queue", Holdfast.queue),
        ("a worker", Holdfast.worker),
        ("a schedule", Schedules.add),
    ],
)
def test_the_settings_have_the_defaults_of_the_code(section: str, function: Any) -> None:
    table = re.split(r"^## ", read("reference/settings.md").partition(f"## Of {section}\n")[2], flags=re.MULTILINE)[0]
    rows = [row.split(" | ")[:2] for row in table.splitlines() if row.startswith("| `")]
    told = {name: default.strip(" |") for names, default in rows for name in re.findall(r"\w+", names)}
    for name, parameter in inspect.signature(function).parameters.items():
        if (default := parameter.default) is not parameter.empty and name not in ("args", "actor", "reason"):
            plain = "none" if default is None else f"`{default!r}`".replace("'", '"')
            plain = f"{default:,}" if isinstance(default, int) and not isinstance(default, bool) else plain
            assert told.get(name) in (plain, str(default), IN_WORDS.get(name)), f"{name}={default!r}"


def test_the_options_of_the_worker_command_are_in_the_settings() -> None:
    own = re.findall(
        r"--[\w-]+", read("reference/settings.md").partition("Of the command alone:")[2].partition(".")[0]
    )
    of_app = {"--" + name.replace("_", "-") for name in inspect.signature(Holdfast.worker).parameters}
    options = {name for one in worker_command.params for name in one.opts if name.startswith("--")}
    assert options - of_app == set(own)


def test_the_readme_has_the_limits_of_the_code() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    keeps = Retention()
    days = {name: round(getattr(keeps, name) / timedelta(days=1)) for name in ("succeeded", "failed")}
    for claim in (
        f"`busy_timeout`, {BUSY_SECONDS:g} seconds or {WORKER_BUSY_SECONDS:g} in a worker",
        f"waits for at most {MAX_BLOCKERS:,} others",
        f"at most {MAX_BYTES >> 20} MiB and {MAX_DEPTH} levels; over {LARGE_BYTES >> 10} KiB",
        f"at most {validate.MAX_NAME} characters, keys at most {validate.MAX_KEY}",
        f"deleted** after {days['succeeded']} days, failed ones after {days['failed']}",
    ):
        assert claim in text


def test_the_limits_are_those_of_the_code() -> None:
    section = read("reference/settings.md").partition("## Limits")[2]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE))
    for what, limit in {
        "payload, result, as JSON": MAX_BYTES,
        "payload of a schedule, of a callback of a batch": LARGEST_INLINE_BYTES,
        "one statement of `enqueue_many` and `send_many`": CHUNK_ROWS,
        "depth of a payload, of a result": MAX_DEPTH,
        "name of a queue, a task, a tag, an actor": validate.MAX_NAME,
        "key": validate.MAX_KEY,
        "blockers of one job (`after`)": MAX_BLOCKERS,
        "jobs released in one transaction when a blocker finishes": MAX_RESOLVED,
        "error detail of a failure, reason of an operator": failure.DETAIL_LIMIT,
        "traceback": failure.TRACEBACK_LIMIT,
        "messages in one `receive_many`, dead letters in one call, jobs on a page": MAX_PAGE,
        "jobs that a worker claims at a time": MAX_BATCH,
        "pairs of queue and task that are compared by priority": WINDOW_STEPS // 2,  # a step for each queue, too
        "tasks still running after their timeout, before a worker stops": MAX_STUCK,
        "ended workers in the list": ENDED_WORKERS_KEPT,
        "retry delay, snooze": round(MAX_DELAY_SECONDS / 86_400),
    }.items():
        assert re.search(rf"\b{limit}\b", rows[what].replace(",", "")), what


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("guides/workers.md", f"at most {MAX_BATCH} jobs"),
        ("guides/workers.md", f"Up to {WINDOW_STEPS // 2} pairs"),
        ("internals/worker.md", f"at most {MAX_BATCH}. A task"),
        ("internals/worker.md", f"| unfolded events | {FOLD_EVENTS:,} |"),
        ("internals/store.md", f"fit into {WINDOW_STEPS} steps"),
        ("internals/statistics.md", f"at most {FOLD_EVENTS:_} events".replace("_", " ")),
        ("internals/statistics.md", f"after every {CHANGES_PER_FOLD:_} changes".replace("_", " ")),
        ("internals/group-commit.md", f"2 to {_Insertion.max_combined} members"),
        ("internals/group-commit.md", f"A group has at most {MAX_GROUP} members."),
    ],
)
def test_a_number_in_the_text_is_that_of_the_code(page: str, words: str) -> None:
    assert words in " ".join(read(page).split())


def test_every_exception_that_a_page_names_exists() -> None:
    known = vars(errors).keys() | vars(builtins).keys() | vars(outcome).keys()
    named = re.compile(r"\b[Rr]ais(?:e|es|ed|ing)\s+`([A-Z]\w+)|`([A-Z]\w+)`\s+(?:is|are)\s+raised")
    found = {(page.name, match[1] or match[2]) for page in PAGES for match in named.finditer(page.read_text("utf-8"))}
    assert len(found) > 50
    assert sorted(one for one in found if one[1] not in {*known, "CancelledError"}) == []


def test_every_exception_is_in_the_reference_with_what_to_do() -> None:
    found = {name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)}
    in_tables = set(re.findall(r"^\| `(\w+)` \|", read("reference/errors.md"), re.MULTILINE))
    assert found - in_tables - {"HoldfastError"} == set()


@pytest.mark.parametrize("page", GENERATE["PARTS"])
def test_the_generated_parts_of_a_page_are_up_to_date(page: str) -> None:
    assert read(page) == GENERATE["generated"](page), "run: python docs/generate_reference.py"


def test_every_option_is_declared_checked_and_carried() -> None:
    assert set(OPTIONS) == {*EnqueueOptions.__annotations__, *TaskDecoratorOptions.__annotations__}
    assert set(TaskOptions.__struct_fields__) == set(TaskDecoratorOptions.__annotations__)
    assert set(EnqueueOptions.__annotations__) - {*LINK_OPTIONS} <= set(NewJob.__struct_fields__)


def test_every_error_code_is_in_the_reference() -> None:
    source = "\n".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*") if file.suffix in (".py", ".sql")
    )
    categories = {code.partition(":")[0] for code in failure.BUILT_IN_CODES.values()} | {"RESULT", "RETRY"}
    given = {
        code for code in re.findall(r"['\"]([A-Z_]+:[A-Z_]+)['\"]", source) if code.partition(":")[0] in categories
    }
    given -= {"DEPENDENCY:STRIPE"}  # an example
    assert set(failure.BUILT_IN_CODES.values()) <= given
    assert {code for code in given if f"`{code}`" not in read("reference/errors.md")} == set()


def test_the_list_of_the_doctors_checks_is_generated() -> None:
    """If this fails: python docs/generate_doctor.py"""
    generate = runpy.run_path(str(DOCS / "generate_doctor.py"))["with_checks"]
    page = read("reference/doctor.md")
    assert generate(page) == page


def test_one_page_says_what_is_retried_and_no_other_says_otherwise() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert [name for name, text in texts.items() if "does not decide whether a job is retried" in text] == [
        "errors-and-retries.md"
    ]
    assert [name for name, text in texts.items() if re.search(r"(retry|trying again) will\s+not\s+help", text)] == []


def test_the_list_of_endpoints_is_generated() -> None:
    """If this fails: python docs/generate_http_api.py"""
    generate = runpy.run_path(str(DOCS / "generate_http_api.py"))["with_endpoints"]
    page = read("reference/http-api.md")
    assert generate(page) == page


def events_in_source() -> set[str]:
    statements = "\n".join(file.read_text(encoding="utf-8") for file in SQL.rglob("*.sql"))
    code = (SQL.parent / "operate.py").read_text(encoding="utf-8")
    schedules = (SQL.parent / "schedules.py").read_text(encoding="utf-8")
    return {
        *re.findall(r"transition = '(\w+)'", statements),
        *re.findall(r"SELECT NEW\.id, \{now\}, '(\w+)'", statements),
        *re.findall(r"VALUES \([^)]*(?:at|AT), '(\w+)'", statements),
        *re.findall(r"self\._sql\.(?:pause|resume), \"(\w+)\"", code),
        *re.findall(r"_note_schedule\([^,]+, \"(\w+)\"", schedules),
        *(f"schedule_{event}" for event in EVENTS_OF_SCHEDULES.values()),
        *(f"{action}d" for action in re.findall(r"action in \(\"(\w+)\", \"(\w+)\"\)", code)[0]),
    }


def test_every_event_is_in_the_reference() -> None:
    events = events_in_source()
    # Events come from statements, from triggers and from operators: the search must find each kind.
    assert {"claimed", "enqueued", "edited", "removed", "paused", "purged", "schedule_added"} <= events
    in_tables = set(re.findall(r"^\| `(\w+)` \|", read("reference/events.md"), re.MULTILINE))
    assert events - in_tables == set()
    columns = {"id", "job_id", "at", "event", "attempt", "actor", "reason", "run_at", "detail"}
    assert set(EVENTS) == in_tables - columns, "what can be asked for"


def test_the_schema_page_has_every_table_and_column(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "app.db"):
        conn = sqlite3.connect(tmp_path / "app.db")
        tables = [
            row[0]
            for row in conn.execute("SELECT name FROM sqlite_master WHERE name LIKE 'holdfast_%' AND type = 'table'")
        ]
        sections = dict(
            re.findall(r"^## (holdfast_\w+)\n(.*?)(?=^## |\Z)", read("reference/schema.md"), re.MULTILINE | re.DOTALL)
        )
        sections["holdfast_jobs"] += read("reference/schema.md").partition("## holdfast_jobs")[0]
        for table in tables:
            columns = {row[1] for row in conn.execute(f"PRAGMA table_info({table})")}
            assert columns - words_in_code(sections[table]) == set(), table
        conn.close()


def test_the_states_page_has_every_state_and_transition() -> None:
    page = words_in_code(read("internals/states.md"))
    assert STATUSES - page == set()
    for file in SQL.glob("sql/*.sql"):
        for name, comment in re.findall(
            r"^-- name: (\w+)\n((?:--.*\n)*)", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if "->" in comment:
                assert name in page, f"{name} in {file.name}"


MOVES = sorted((DOCS / "guides").glob("moving-from-*.md"))


def test_there_is_a_guide_for_moving_from_each_of_these() -> None:
    assert [page.stem for page in MOVES] == [
        f"moving-from-{name}" for name in ("apscheduler", "celery", "huey", "rq")
    ]


@pytest.mark.parametrize("page", MOVES, ids=lambda page: page.stem)
def test_a_guide_for_moving_begins_with_what_a_call_does_and_maps_the_names(page: Path) -> None:
    _, first, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert first.startswith("**Calling a task runs it here")
    text = page.read_text(encoding="utf-8")
    assert all(f"\n## {part}\n" in text for part in ("The same program", "Names", "What is different"))
    assert "t least once" in text.partition("## What is different")[2] or "run twice" in text


def without_code(page: Path) -> str:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", lambda code: re.sub(r"[][()]", "", code[0]), text)


def links(page: Path) -> Iterator[str]:
    """Yield each relative link of a page, images included."""
    text = without_code(page)
    found = [*re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text), *re.findall(r"(?:src|href)=\"([^\"]+)\"", text)]
    yield from (link for link in found if not re.match(r"[a-z]+:", link))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page that GitHub and the documentation site agree on."""
    headings = [
        heading.lower().replace("`", "") for heading in re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    ]
    on_github = [re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings]
    on_the_site = [re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in headings]
    return {one for one in on_github if on_github.count(one) == 1} & set(on_the_site)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() or target in WRITTEN_LATER, link
        assert not anchor or anchor in anchors(target), link


def test_no_page_of_the_site_links_to_a_file_outside_of_it() -> None:
    outside = [
        (str(page.relative_to(DOCS)), link)
        for page in sorted(DOCS.rglob("*.md"))
        for link in links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_every_page_can_be_reached_from_the_index() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "index.md")}
    assert set(DOCS.rglob("*.md")) - linked == {DOCS / "index.md"}


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = re.findall(r"^ +- [^:]+: (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(pages) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_architecture_page_has_every_module_with_its_docstring() -> None:
    spec = importlib.util.spec_from_file_location("modules", DOCS / "internals" / "modules.py")
    assert spec is not None and spec.loader is not None
    modules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modules)
    page = read("internals/architecture.md")
    assert modules.page_with(modules.tables(), page) == page, "run: make modules"


OF_OTHERS = {"TestCase", "json_object", "BUSY_SNAPSHOT", "IN_CLOSE_WRITE"}  # Django's, SQLite's, Linux's
NAME_IN_CODE = re.compile(r"`((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(\))?`")


@cache
def words_of_the_code() -> set[str]:
    files = [file for folder in ("src", "tests", "benchmarks") for file in (ROOT / folder).rglob("*.*")]
    texts = [file.read_text("utf-8") for file in files if file.suffix in (".py", ".sql") and file != Path(__file__)]
    return {file.stem for file in files}.union(*(re.findall(r"\w+", text) for text in texts))


@pytest.mark.parametrize("page", sorted((DOCS / "internals").glob("*.md")), ids=lambda page: page.name)
def test_the_internals_name_only_what_the_code_has(page: Path) -> None:
    named = {name.split(".")[-1] for name in NAME_IN_CODE.findall(page.read_text("utf-8"))}
    of_sql = {name for name in named if name.isalpha() and name.isupper()}
    assert named - words_of_the_code() - OF_OTHERS - of_sql == set()


def test_the_targets_of_the_makefile_have_a_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    assert phony == set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
