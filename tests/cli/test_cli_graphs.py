"""Chains, blockers and batches in `holdfast show` and `holdfast delete`."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast, JobError, Then
from support.running_worker import drain
from support.transitions import claim_one

Run = Callable[..., Result]
Data = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def work(app: Holdfast) -> Any:
    @app.task(max_attempts=1)
    def work(left: int = 0, fails: bool = False) -> Any:
        if fails:
            raise JobError("DEPENDENCY:SMTP", "503")
        return Then(work, left - 1) if left else None

    return work


@pytest.fixture
def drawn(on: Run) -> Callable[[int], list[str]]:
    """Return the part between the fields and the history."""

    def lines(job_id: int) -> list[str]:
        result = on("show", job_id)
        assert result.exit_code == 0, result.output
        _, *parts = result.stdout.rstrip("\n").split("\n\n")
        return "\n".join(part for part in parts if not part.startswith("AT (UTC)")).splitlines()

    return lines


def fields(on: Run, job_id: int) -> dict[str, str]:
    lines = on("show", job_id).stdout.split("\n\n")[0].splitlines()
    return {line[:18].strip() if "  " in line[:20] else line: line.split("  ")[-1].strip() for line in lines}


# --- what is drawn ---


def test_a_single_job_has_no_relations(work: Any, drawn: Any, data: Data) -> None:
    job = work.enqueue()
    assert drawn(job.id) == []
    shown = data("show", job.id)
    assert shown["chain"] == [{"id": 1, "task": "work", "status": "ready", "index": 0}]
    assert (shown["chain_id"], shown["chain_index"], shown["chain_length"]) == (1, 0, 1)
    assert (shown["blockers"], shown["waiting"], shown["batch"], shown["external"]) == ([], [], None, False)


def test_a_shared_blocker_is_drawn_once(app: Holdfast, work: Any, drawn: Any, on: Run) -> None:
    top = work.enqueue(fails=True)
    sides = [work.using(after=top).enqueue() for _ in range(2)]
    end = work.using(after=sides).enqueue()
    drain(app)
    assert drawn(end.id) == [
        "depends on",
        "├── 2 work  blocked",
        "│   └── 1 work  failed  DEPENDENCY:SMTP",
        "└── 3 work  blocked",
        "    └── 1 work  failed  DEPENDENCY:SMTP  (see above)",
    ]
    assert drawn(top.id) == ["needed by", "├── 2 work  blocked", "└── 3 work  blocked"]
    assert re.search(r"^on blocker failure +hold$", on("show", end.id).stdout, re.MULTILINE)


def test_relations_as_json(app: Holdfast, work: Any, data: Data) -> None:
    top = work.enqueue(fails=True)
    sides = [work.using(after=top).enqueue() for _ in range(2)]
    end = work.using(after=sides, on_blocker_failure="run").enqueue()
    drain(app)
    shown = data("show", end.id)
    first, second = shown["blockers"]
    (above,) = first["blockers"]
    assert list(above) == [
        "id", "task", "status", "chain_id", "holds", "error_code", "external", "timeout_at", "blockers",
        "more_blockers", "repeated",
    ]  # fmt: skip
    assert (above["id"], above["status"], above["error_code"]) == (1, "failed", "DEPENDENCY:SMTP")
    assert (above["holds"], above["repeated"], second["blockers"][0]["repeated"]) == (True, False, True)
    assert (shown["on_blocker_failure"], shown["more_blockers"]) == ("run", 0)
    assert data("show", top.id)["waiting"] == [{"id": id, "task": "work", "status": "blocked"} for id in (2, 3)]


def test_succeeded_blockers_are_shown_only_on_the_first_level(app: Holdfast, work: Any, drawn: Any) -> None:
    first = work.enqueue()
    second = work.using(after=first).enqueue()
    third = work.using(after=second).enqueue(fails=True)
    end = work.using(after=[second, third, app.external("approve")]).enqueue()
    drain(app)
    assert drawn(end.id) == [
        "depends on",
        "├── 3 work  failed  DEPENDENCY:SMTP",
        "├── 4 approve  blocked  external",
        "└── 2 work  succeeded",
    ]


def test_a_job_failed_by_its_blocker_shows_that_blocker(app: Holdfast, work: Any, drawn: Any) -> None:
    first = work.enqueue(fails=True)
    second = work.using(after=first, on_blocker_failure="fail").enqueue()
    end = work.using(after=second).enqueue()
    drain(app)
    assert drawn(end.id) == [
        "depends on",
        "└── 2 work  failed  DEPENDENCY:BLOCKER",
        "    └── 1 work  failed  DEPENDENCY:SMTP",
    ]


def test_an_external_job_and_its_deadline(app: Holdfast, work: Any, drawn: Any, on: Run, data: Data) -> None:
    moment = datetime.now(UTC) + timedelta(days=3)
    approval = app.external("approve", timeout_at=moment)
    ship = work.using(after=approval).enqueue()
    assert (
        drawn(ship.id)[1]
        == f"└── 1 approve  blocked  external  until {moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"
    )
    text = on("show", approval.id).stdout
    assert re.search(r"^task +approve, external$", text, re.MULTILINE)
    assert re.search(rf"^deadline +{moment:%Y-%m-%d %H:%M:%S}.* UTC, in (3d|2d 23h)$", text, re.MULTILINE)
    shown = data("show", approval.id)
    assert shown["external"] is True and shown["timeout_at"].startswith(f"{moment:%Y-%m-%dT%H:%M:%S}")


def test_a_chain_is_drawn_in_order_with_the_job_marked(app: Holdfast, work: Any, drawn: Any, on: Run) -> None:
    work.enqueue(7)
    drain(app)
    assert drawn(4) == [
        "chain 1, 8 jobs",
        "├── 1 work  succeeded",
        "├── 2 work  succeeded",
        "├── 3 work  succeeded",
        "├── 4 work  succeeded  (this job)",
        "├── 5 work  succeeded",
        "├── 6 work  succeeded",
        "├── 7 work  succeeded",
        "└── 8 work  succeeded",
    ]
    assert re.search(r"^chain +1, job 4 of 8$", on("show", 4).stdout, re.MULTILINE)


def test_a_long_chain_is_drawn_around_the_job(app: Holdfast, work: Any, drawn: Any, data: Data) -> None:
    work.enqueue(1500)
    drain(app)
    assert drawn(700) == [
        "chain 1, 1,501 jobs",
        "├── 1 work  succeeded",
        "├── … 696 more",
        "├── 698 work  succeeded",
        "├── 699 work  succeeded",
        "├── 700 work  succeeded  (this job)",
        "├── 701 work  succeeded",
        "├── 702 work  succeeded",
        "├── … 798 more",
        "└── 1501 work  succeeded",
    ]
    assert [line.split()[1] for line in drawn(1)[1:]] == ["1", "2", "3", "…", "1501"]
    assert [line.split()[1] for line in drawn(1501)[1:]] == ["1", "…", "1499", "1500", "1501"]
    shown = data("show", 700)
    ids = [link["id"] for link in shown["chain"]]
    assert (ids[:2], ids[-2:], shown["chain_length"]) == ([1, 200], [1200, 1501], 1501)
    assert 900 < len(ids) < 1100


def test_a_chain_as_blocker_is_shown_by_its_last_job(app: Holdfast, work: Any, drawn: Any) -> None:
    root = work.enqueue(2)
    end = work.using(after=root).enqueue()
    drain(app)
    assert drawn(end.id) == ["depends on", "└── 4 work  succeeded  of chain 1"]


def test_a_deleted_blocker(app: Holdfast, work: Any, drawn: Any) -> None:
    end = work.using(after=work.enqueue()).enqueue()
    with app.transaction() as tx:
        tx.execute("DELETE FROM holdfast_jobs WHERE id = 1")
    assert drawn(end.id) == ["depends on", "└── chain 1  deleted"]


def test_long_lists_are_cut(app: Holdfast, work: Any, drawn: Any, data: Data) -> None:
    first = work.enqueue_many([{}] * 990)
    app.jobs.cancel(first[500])
    end = work.using(after=first).enqueue()
    lines = drawn(end.id)
    assert lines[1] == "├── 501 work  cancelled", "what is in the way comes first"
    assert len(lines) == 12 and lines[-1] == "└── … and 980 more"
    shown = data("show", end.id)
    assert (len(shown["blockers"]), shown["more_blockers"]) == (10, 980)
    for _ in range(30):
        work.using(after=first[0]).enqueue()
    assert drawn(first[0])[-1] == "└── … and 21 more"
    assert (len(data("show", first[0])["waiting"]), data("show", first[0])["more_waiting"]) == (10, 21)


def test_a_deep_and_wide_graph_is_limited(work: Any, drawn: Any) -> None:
    level = work.enqueue_many([{}] * 12)
    for _ in range(8):
        level = [work.using(after=level).enqueue().id for _ in range(12)]
    lines = drawn(level[0])
    assert lines[1:8] == [
        "├── 85 work  blocked",
        "│   ├── 73 work  blocked",
        "│   │   ├── 61 work  blocked",
        "│   │   │   ├── 49 work  blocked",
        "│   │   │   │   ├── 37 work  blocked  (… 12 more)",
        "│   │   │   │   ├── 38 work  blocked  (… 12 more)",
        "│   │   │   │   ├── 39 work  blocked  (… 12 more)",
    ]
    assert lines[-3:] == [
        "├── 93 work  blocked  (12 more: see above)",
        "├── 94 work  blocked  (12 more: see above)",
        "└── … and 2 more",
    ]
    assert len(lines) < 60


def test_blockers_are_drawn_five_levels_deep(work: Any, drawn: Any) -> None:
    job = work.enqueue()
    for _ in range(7):
        job = work.using(after=job).enqueue()
    assert drawn(job.id) == [
        "depends on",
        "└── 7 work  blocked",
        "    └── 6 work  blocked",
        "        └── 5 work  blocked",
        "            └── 4 work  blocked",
        "                └── 3 work  blocked  (… 1 more)",
    ]


def test_a_batch_with_its_progress(app: Holdfast, work: Any, on: Run, data: Data) -> None:
    with app.batch(on_done=work) as batch:
        ids = [work.using(batch=batch).enqueue(fails=number < 2).id for number in range(5)]
        last = work.using(batch=batch, delay=3600).enqueue()
        sentence = r"^batch +1: 0 of 6 finished; not sealed, so it cannot finish yet$"
        assert re.search(sentence, on("show", ids[0]).stdout, re.MULTILINE)
        assert data("show", ids[0])["batch"]["sealed"] is False
    drain(app)
    assert re.search(r"^batch +1: 5 of 6 finished, 2 failed$", on("show", ids[0]).stdout, re.MULTILINE)
    shown = data("show", ids[0])["batch"]
    assert (shown["id"], shown["callback"], shown["total"], shown["finished"], shown["failed"]) == (1, False, 6, 5, 2)
    assert shown["done_at"] is None
    app.jobs.complete(last.id)
    callback = batch.done_job_id
    assert callback is not None
    words = r"^batch +1, this job is its callback: 6 of 6 finished, 2 failed$"
    assert re.search(words, on("show", callback).stdout, re.MULTILINE)
    assert data("show", callback)["batch"]["callback"] is True
    with app.transaction() as tx:
        tx.execute("DELETE FROM holdfast_batches")
    assert re.search(r"^batch +1$", on("show", ids[0]).stdout, re.MULTILINE)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_drawing_fits_the_terminal(app: Holdfast, url: str, terminal: Terminal, columns: int) -> None:
    approval = app.external("approve-" + "very-" * 30, timeout_at=datetime.now(UTC) + timedelta(days=1))
    job = app.task(name="日本語の仕事" * 20)(lambda: None)
    end = job.using(after=[approval, job.enqueue()]).enqueue()
    seen, code = terminal("show", end.id, "--db", url, columns=columns)
    assert code == 0
    assert [line for line in COLOUR.sub("", seen).splitlines() if len(line) > columns] == []
    assert "├── 1 approve-very-" in COLOUR.sub("", seen)


def test_control_characters_in_trees_are_escaped(app: Holdfast, work: Any, on: Run) -> None:
    end = work.using(after=work.enqueue(1)).enqueue()
    drain(app)
    with app.transaction() as tx:
        tx.execute("UPDATE holdfast_jobs SET task = ?", ("\x1b[2J[red]x[/red]\n",))
        tx.execute("UPDATE holdfast_jobs SET status = 'blocked' WHERE id = ?", (end.id,))
    for args in (["show", end.id], ["show", 1], ["explain", end.id]):
        text = on(*args).stdout
        assert "\x1b" not in text and "\\x1b[2J[red]x[/red]\\n" in text
    assert json.loads(on("show", 1, "--json").stdout)["chain"][1]["task"] == "\x1b[2J[red]x[/red]\n"


def test_a_terminal_without_unicode_gets_plain_lines(app: Holdfast, work: Any, start: Any, url: str) -> None:
    import os

    end = work.using(after=work.enqueue()).enqueue()
    ended = start("show", end.id, "--db", url, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0 and "`-- 1 work  ready" in ended.stdout


# --- what is deleted ---


def test_a_job_that_others_wait_for_is_not_deleted(app: Holdfast, work: Any, on: Run) -> None:
    first = work.enqueue()
    for _ in range(12):
        work.using(after=first).enqueue()
    for more in ([], ["--dry-run"]):
        result = on("delete", first.id, *more)
        assert result.exit_code == 1 and result.stdout.startswith("0 jobs ")
        assert result.stderr == (
            "job 1 is unchanged: 12 jobs wait for it (2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more); "
            "cancel them, or add --cascade\n"
        )
    refused = json.loads(on("delete", first.id, "--json").stdout)["refused"]
    assert refused == [{"id": 1, "status": "ready", "reason": "awaited", "waiting": list(range(2, 14))}]
    assert len(app.jobs.list()) == 13


def test_cascade_deletes_waiting_jobs_too(app: Holdfast, work: Any, on: Run, data: Data) -> None:
    first, alone = work.enqueue(), work.enqueue()
    second = work.using(after=first).enqueue()
    third = work.using(after=second).enqueue()
    dry = data("delete", first.id, "--cascade", "--dry-run")
    assert (dry["matched"], dry["done"], len(app.jobs.list())) == (3, 0, 4)
    result = on("delete", first.id, third.id, "--cascade", "--actor", "kim")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "3 jobs deleted.\n", "")
    assert [job.id for job in app.jobs.list()] == [alone.id]


def test_part_of_a_chain_is_not_deleted_without_chain(app: Holdfast, work: Any, on: Run, data: Data) -> None:
    work.enqueue(3)
    drain(app)
    result = on("delete", 2)
    assert result.exit_code == 1
    assert result.stderr == (
        "job 2 is unchanged: it is one of 4 jobs of chain 1; add --chain to delete the whole chain\n"
    )
    (refused,) = json.loads(on("delete", 2, "-n", "--json").stdout)["refused"]
    assert refused == {"id": 2, "status": "succeeded", "reason": "part_of_chain", "chain_id": 1, "length": 4}
    assert data("delete", 2, 3, "--chain", "-n")["matched"] == 4
    assert on("delete", 2, 3, "--chain").stdout == "4 jobs deleted.\n"
    assert on("delete", 2, "--chain").exit_code == 4


def test_a_running_job_prevents_a_cascade(app: Holdfast, work: Any, on: Run) -> None:
    first = work.enqueue()
    second = work.using(after=first).enqueue()
    app.jobs.complete(first.id)
    claim_one(app.store, second.id, 60_000_000, "worker-1")
    for more in ([], ["-n"]):
        result = on("delete", first.id, "--cascade", *more)
        assert result.exit_code == 1
        assert result.stderr == (
            "job 1 is unchanged: job 2, which would be deleted with it, is running; cancel that first\n"
        )
    assert len(app.jobs.list()) == 2


def test_a_dry_run_respects_the_order_of_ids(app: Holdfast, work: Any, on: Run) -> None:
    first = work.enqueue()
    second = work.using(after=first).enqueue()
    for dry, verb in ((["-n"], "would be "), ([], "")):
        result = on("delete", second.id, first.id, *dry)
        assert (result.exit_code, result.stdout, result.stderr) == (0, f"2 jobs {verb}deleted.\n", "")


@pytest.mark.parametrize("filters", [["--status", "succeeded"], ["--queue", "default"], ["--tag", "a"]])
def test_a_dry_run_by_filters_reports_skipped_jobs(app: Holdfast, work: Any, on: Run, filters: list[str]) -> None:
    work.using(tags=["a"]).enqueue(2)  # a chain, of which only the first job has the tag
    work.using(tags=["a"]).enqueue()
    awaited = work.using(tags=["a"]).enqueue()
    drain(app)
    work.using(after=[awaited, app.external("approve", queue="other")], queue="other").enqueue()
    count = {"--status": 4, "--queue": 4, "--tag": 1}[filters[0]]
    dry = on("delete", *filters, "-n")
    assert dry.stdout == f"{count} job{'s' if count > 1 else ''} would be deleted.\n"
    assert "that other jobs wait for, or whose chain matches only in part" in dry.stderr
    done = on("delete", *filters, "-y")
    assert done.stdout == dry.stdout.replace("would be ", "")
    assert awaited.refresh().status == "succeeded"


@pytest.mark.parametrize("option", ["--chain", "--cascade"])
def test_chain_and_cascade_require_ids(app: Holdfast, on: Run, option: str) -> None:
    result = on("delete", "--status", "failed", option, "-y")
    assert result.exit_code == 2 and f"{option} requires ids" in result.stderr
