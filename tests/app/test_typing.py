"""Types: the package passes mypy --strict; mypy and pyright see a task's own parameters and its result."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"

# A line that type checkers must refuse ends with "# refused"; every other line must pass. basedpyright stands for
# pyright: it is the same checker, and its wheel brings its own node, so that it needs no network.
SNIPPET = """
from collections.abc import Generator, Iterator
from typing import Any, Coroutine, Literal, NoReturn, Optional, Union, assert_type
from holdfast import Batch, Context, Fail, FailureReport, Holdfast, Job, Message, Queue, Retry, Snooze, Then
from holdfast.app.schedules import Schedule
import msgspec

app = Holdfast("app.db")


# --- hooks and options ---

@app.on_failure
def notify(job: FailureReport) -> None: ...

@app.on_failure(queue="alerts", timeout=5)
async def page(ctx: Context, job: FailureReport) -> None: ...

@app.on_worker_start
def connect() -> None: ...

@app.on_worker_stop(process="pool")
def unload() -> None: ...

@app.before_job
@app.after_job
def clean_up() -> None: ...

@app.every(30, jitter=3, expires=9)
def tick() -> int:
    return 1

@app.task(retry_on=(OSError, ValueError), give_up_on=KeyError, expires=60)
def resume(ctx: Context) -> None:
    ctx.save_state({"page": ctx.state.get("page", 0) + 1})

assert_type(connect(), None)
assert_type(tick.enqueue(), Job[int])
resume.using(expires=None).enqueue()
app.on_worker_stop(process="thread")  # refused
app.task(retry_on="OSError")  # refused
resume.using(expires="soon")  # refused


# --- a plain task ---

@app.task
def send_mail(to: str, times: int = 1) -> bool:
    return True

assert_type(send_mail("ada"), bool)
assert_type(send_mail.enqueue("ada", times=2), Job[bool])
assert_type(send_mail.enqueue("ada").wait(), bool)
assert_type(send_mail.enqueue("ada").result, bool | None)
send_mail.enqueue()  # refused
send_mail.enqueue(1)  # refused
send_mail.enqueue("ada", times="2")  # refused
send_mail.enqueue("ada", 2, 3)  # refused
send_mail.enqueue("ada", subject="hi")  # refused
send_mail(1)  # refused
send_mail.using(delay=60, priority=1, key="k").enqueue("ada", 2)
send_mail.using(delay=60).enqueue(1)  # refused
send_mail.using(delay=60).enqueue()  # refused
send_mail.using(delay=60).using(priority=1).enqueue("ada", times="2")  # refused
send_mail.using(dealy=60)  # refused
send_mail.using(priority="high")  # refused
send_mail.using(on_conflict="ignore")  # refused
send_mail.using(delay=60).using(dealy=60)  # refused


# --- with options ---

@app.task(queue="mail", max_attempts=5, timeout=30, retry=[1, 2, 3])
def with_options(row: int) -> str:
    return ""

assert_type(with_options.enqueue(1), Job[str])
with_options.enqueue("1")  # refused

@app.task(retry=lambda attempt: attempt * 2.0)
def with_callable() -> None: ...

@app.task(queue=5)  # refused
def with_bad_option() -> None: ...


# --- with a context, which disappears ---

@app.task
def import_row(ctx: Context, row: int) -> str:
    return ""

assert_type(import_row.enqueue(1), Job[str])
assert_type(import_row(1), str)
import_row.using(delay=1).enqueue(row=1)
import_row.enqueue()  # refused
import_row.enqueue("1")  # refused
import_row.enqueue(Context(), 1)  # refused
import_row.using(delay=1).enqueue("1")  # refused

@app.task(queue="rows")
def only_context(ctx: Context) -> None: ...

only_context.enqueue()
only_context.enqueue(1)  # refused


# --- async ---

@app.task
async def fetch(address: str) -> bytes:
    return b""

assert_type(fetch.enqueue("x"), Job[bytes])
assert_type(fetch.enqueue("x").result, bytes | None)
assert_type(fetch("x"), Coroutine[Any, Any, bytes])  # type: ignore
fetch.enqueue(1)  # refused
fetch.using(delay=1).enqueue()  # refused

@app.task(queue="net")
async def fetch_row(ctx: Context, row: int) -> bytes:
    return b""

assert_type(fetch_row.enqueue(1), Job[bytes])
fetch_row.enqueue("1")  # refused
fetch_row.using(delay=1).enqueue("1")  # refused

async def main() -> None:
    assert_type(await (await send_mail.aenqueue("ada")).await_result(timeout=5), bool)
    assert_type(await send_mail.aenqueue("ada"), Job[bool])
    assert_type(await fetch.using(delay=1).aenqueue("x"), Job[bytes])
    assert_type(await fetch("x"), bytes)
    await send_mail.aenqueue(1)  # refused
    await fetch_row.using(delay=1).aenqueue("x")  # refused


# --- results ---

@app.task
def anything(row: int) -> object:
    return row

@app.task
def value_or_then(row: int) -> str | Then:
    return Then(anything, row) if row else ""

@app.task(queue="rows")
def with_every_outcome(ctx: Context, row: int) -> list[int] | Retry | Snooze | Fail | Then | None:
    return None

@app.task
async def async_value_or_then(ctx: Context, row: int) -> int | Retry | Then:
    return Then(anything, row)

@app.task
def only_then(row: int) -> Then:
    return Then(anything, row)

@app.task
def never(row: int) -> NoReturn:
    raise Fail("INVALID_INPUT")

@app.task
async def async_never(ctx: Context, row: int) -> NoReturn:
    raise Fail("INVALID_INPUT")

assert_type(anything.enqueue(1).wait(), object)
assert_type(value_or_then.enqueue(1).wait(), str)
assert_type(value_or_then.enqueue(1).result, str | None)
assert_type(value_or_then.using(delay=1).enqueue(1).wait(timeout=5), str)
assert_type(with_every_outcome.enqueue(1).wait(), list[int] | None)
assert_type(async_value_or_then.enqueue(1).wait(), int)
assert_type(only_then.enqueue(1).wait(), Any)
assert_type(never.enqueue(1).wait(), Any)
assert_type(async_never.enqueue(1).wait(), Any)
value_or_then.enqueue("1")  # refused
never.enqueue("1")  # refused
async_never.enqueue("1")  # refused


# --- chains ---

@app.task
def leaf(name: str, size: int = 1) -> float:
    return 1.0

@app.task
def with_chain(ctx: Context, row: int) -> str | Then:
    if row == 1:
        return Then(leaf, "x", size=3)
    if row == 2:
        return Then(leaf.using(delay=5), "x")
    if row == 3:
        return Then(import_row, row)
    if row == 4:
        return Then(fetch, "x")
    if row == 5:
        return Then(leaf, "x", zzz=3)  # refused
    if row == 6:
        return Then(leaf.using(delay=5), 7)  # refused
    if row == 7:
        return Then(fetch)  # refused
    if row == 8:
        return Then("leaf", "x")  # refused
    return ""

assert_type(with_chain.enqueue(1).wait_chain(), Any)
assert_type(with_chain.enqueue(1).wait_chain(last=leaf), float)
assert_type(with_chain.enqueue(1).wait_chain(5, last=fetch), bytes)
assert_type(app.chains.get(1).wait(last=leaf), float)
with_chain.enqueue(1).wait_chain(last="leaf")  # refused

@app.task
async def completes(ctx: Context) -> None:
    async with ctx.acomplete(result=1) as tx:
        tx.execute("SELECT 1")
    assert_type(await ctx.acomplete(lambda tx: 5), int)
    async with ctx.acomplete(1) as tx:  # refused
        pass

async def await_chain() -> None:
    assert_type(await with_chain.enqueue(1).await_chain(), Any)
    assert_type(await with_chain.enqueue(1).await_chain(last=leaf), float)


# --- what a Context gives ---

@app.task
def with_everything(ctx: Context) -> None:
    assert_type(ctx.job, Job[Any] | None)
    assert_type(ctx.batch, Batch | None)
    leaf.using(batch=ctx.batch).enqueue("x")
    with ctx.complete() as tx:
        tx.execute("SELECT 1")
    ctx.job.id  # refused


# --- middleware ---

@app.middleware
def before_and_after(ctx: Context) -> Iterator[None]:
    yield

@app.middleware
def with_result(ctx: Context) -> Generator[None, object, None]:
    result = yield
    assert_type(result, object)

@app.middleware  # refused
def without_yield(ctx: Context) -> int:
    return 1


# --- a first parameter that may be anything is no Context ---

@app.task
def handle(event: Any, row: int) -> None: ...

handle.enqueue({"id": 1}, 2)
handle.enqueue(event={"id": 1}, row=2)


# --- cron ---

@app.cron("@daily", tz="Europe/Zurich", missed="skip", queue="night", retry=[1, 2])
def tidy(deep: bool = False) -> int:
    return 0

@app.cron("@daily")
async def sweep(ctx: Context, room: str = "") -> int:
    return 0

assert_type(tidy.enqueue(deep=True), Job[int])
assert_type(tidy(), int)
assert_type(sweep.enqueue("hall"), Job[int])
assert_type(app.cron("@hourly", name="more")(tidy).enqueue(), Job[int])
tidy.enqueue("deep")  # refused
sweep.enqueue(1)  # refused
app.cron("@daily", missed="all")  # refused
app.cron("@daily", queue=5)  # refused
app.cron("@daily", queu="x")  # refused
assert_type(app.schedules.add("x", "@daily", tidy.using(queue="q"), {"deep": True}), Schedule)
app.schedules.add("x", "@daily", "tidy", missed="catch_up", catch_up_limit=5)
app.schedules.add("x", "@daily", 5)  # refused
app.schedules.add("x", "@daily", tidy, missed="all")  # refused
assert_type(app.schedules.list(), list[Schedule])


# --- queues ---

class Order(msgspec.Struct):
    id: int

orders = app.queue("orders", type=Order)
assert_type(orders, Queue[Order])
orders.send(Order(1))
orders.send("text")  # refused
orders.send_many([Order(1), "text"])  # refused
message = orders.receive()
assert_type(message, Message[Order] | None)
if message is not None:
    assert_type(message.body, Order)
    assert_type(message.ack(), bool)
app.queue("any").send({"anything": 1})

class Refund(msgspec.Struct, tag=True):
    id: int

class Sale(msgspec.Struct, tag=True):
    id: int

either = app.queue("either", type=Refund | Sale)
assert_type(either, Queue[Refund | Sale])
either.send(Refund(1))
either.send("text")  # refused
maybe = app.queue("maybe", type=Order | None, visibility=5)
assert_type(maybe, Queue[Order | None])
maybe.send(None)
assert_type(app.queue("optional", type=Optional[Order]), Queue[Order | None])
assert_type(app.queue("union", type=Union[Refund, Sale]), Queue[Refund | Sale])
Event = Refund | Sale
assert_type(app.queue("events", type=Event), Queue[Refund | Sale])
assert_type(app.queue("verbs", type=Literal["start", "stop"]), Queue[Literal["start", "stop"]])
lists = app.queue("lists", type=list[int])
assert_type(lists, Queue[list[int]])
lists.send(["text"])  # refused
app.queue("nested", type=dict[str, Refund | Sale]).send({"a": Sale(1)})
app.queue("five", type=5)  # refused

async def messages() -> None:
    assert_type(await orders.asend(Order(1), delay=5), int)
    await orders.asend("text")  # refused
    await orders.asend(Order(1), dealy=5)  # refused
    assert_type(await orders.areceive(wait=20), Message[Order] | None)
    for message in await orders.areceive_many(10):
        assert_type(message.body, Order)
        assert_type(await message.aack(), bool)
        await message.aextend("long")  # refused


# --- jobs ---

assert_type(app.jobs.get(1), Job[Any])
assert_type(app.jobs.retry(1), bool)
assert_type(app.jobs.retry(status="failed"), int)
assert_type(app.jobs.cancel(queue=["a", "b"]), int)
app.jobs.list(statsu="failed")  # refused
app.jobs.cancel(state="failed")  # refused

async def jobs() -> None:
    assert_type(await app.jobs.aget(1), Job[Any])
    assert_type(await app.jobs.aretry(1), bool)
    assert_type(await app.jobs.aretry(status="failed", delay=5), int)
    assert_type((await send_mail.enqueue("ada").arefresh()).result, bool | None)
    await app.jobs.aretry(statsu="failed")  # refused
    await app.jobs.aget("1")  # refused
"""

# At run time a Context is found wherever it stands; types can only take away the first parameter.
ELSEWHERE = """
from holdfast import Context, Holdfast

app = Holdfast("app.db")

@app.task
def import_row(row: int, ctx: Context) -> None: ...

import_row.enqueue(1)  # refused
"""

# A program as users write it.
PROGRAM = (ROOT / "examples" / "order_workflow.py").read_text(encoding="utf-8")

# The middleware that the guide shows.
_GUIDE = (ROOT / "docs" / "guides" / "workers.md").read_text(encoding="utf-8").partition("\n## Middleware\n")[2]
MIDDLEWARE = "\n".join(
    ["import time", "from holdfast import Context, Holdfast", 'app = Holdfast("app.db")']
    + [block for block in re.findall(r"```python\n(.*?)```", _GUIDE, re.DOTALL)[:2] if "@app.middleware" in block]
).partition("\njob = ")[0]

SNIPPETS = {"calls": SNIPPET, "elsewhere": ELSEWHERE, "program": PROGRAM, "middleware": MIDDLEWARE}
CHECKERS = ("mypy", "basedpyright")

Said = dict[str, dict[int, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snippets")
    for name, text in SNIPPETS.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def mypy(folder: Path) -> Said:
    """Errors of mypy in each snippet and in the package, by line. One run for all of them."""
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    output, problems, _ = api.run([*settings, str(PACKAGE), str(folder)])
    assert problems == ""
    said: Said = {snippet: {} for snippet in (*SNIPPETS, "package")}
    for path, line, text in re.findall(r"^(.+)\.py:(\d+): error: (.*)", output, re.MULTILINE):
        where = Path(path)
        # mypy repeats cached errors of an earlier run, with the folder of that run.
        said[where.name if where.parent.name.startswith("snippets") else "package"][int(line)] = f"{path}: {text}"
    return said


@pytest.fixture(scope="module")
def basedpyright(folder: Path) -> Said:
    """Errors of pyright's strict mode in each snippet, by line."""
    settings = {
        "typeCheckingMode": "strict",
        "reportUnusedCoroutine": False,
        "venvPath": str(Path(sys.prefix).parent),
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings | {"venv": Path(sys.prefix).name}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout, ran.stderr
    said: Said = {snippet: {} for snippet in SNIPPETS}
    for found in json.loads(ran.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            said[Path(found["file"]).stem][found["range"]["start"]["line"] + 1] = found["message"]
    return said


@pytest.fixture
def said(request: pytest.FixtureRequest) -> Said:
    found: Said = request.getfixturevalue(request.param)
    return found


def refused(text: str) -> set[int]:
    return {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")}


def test_the_package_passes_mypy_strict(mypy: Said) -> None:
    assert mypy["package"] == {}


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("said", CHECKERS, indirect=True)
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_type_checkers_accept_right_calls(said: Said, snippet: str) -> None:
    wrongly = said[snippet].keys() - refused(SNIPPETS[snippet])
    assert {line: said[snippet][line] for line in wrongly} == {}


@pytest.mark.parametrize("said", CHECKERS, indirect=True)
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_type_checkers_refuse_wrong_calls(said: Said, snippet: str) -> None:
    lines = SNIPPETS[snippet].splitlines()
    assert [lines[line - 1] for line in refused(SNIPPETS[snippet]) - said[snippet].keys()] == []
