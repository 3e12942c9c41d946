"""`holdfast show` and `explain`: one job with its chain, dependencies and history, and why it is in its state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from ...app.job import Job
from ...app.jobs import HistoryEntry
from ...app.workflows import BlockerNode, Relations
from ...clock import as_datetime
from ...model.job import JobRecord
from ...supervisor import Holdfast
from ...text import to_data
from ..options import DatabaseOption, complete_jobs, example, job_id, read_options
from ..output import (
    Branch,
    Cell,
    Column,
    Row,
    age,
    document,
    due,
    fields,
    paragraph,
    say,
    say_lines,
    span,
    status_cell,
    table,
    task_cell,
    tree,
    utc_text,
)
from .events import detail_words
from .jobs import job_data, payload_text

MAX_LISTED = 10  # jobs of a chain that is shown in full
NEIGHBOURS = 2  # jobs shown before and after this one, in a long chain
COLUMNS = (
    Column("AT (UTC)"), Column("EVENT"), Column("WAIT", right=True, spare=1),
    Column("RUN", right=True, spare=1), Column("BY", least=8, spare=3), Column("DETAIL", least=14, spare=2),
)  # fmt: skip
Field = tuple[str, Cell | str]


@click.command(epilog=example("holdfast show 42 --db app.db --traceback"))
@click.argument("id", type=job_id, shell_complete=complete_jobs)
@click.option("--args", "with_args", is_flag=True, help="Show the payload.")
@click.option("--result", "with_result", is_flag=True, help="Show the result.")
@click.option("--state", "with_state", is_flag=True, help="Show the state that an attempt saved for the next one.")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show the traceback of the last error.")
@read_options
def show(
    database: DatabaseOption,
    id: int,
    with_args: bool,
    with_result: bool,
    with_state: bool,
    with_traceback: bool,
    as_json: bool,
) -> None:
    """Show one job with its dependencies and history.

    WAIT is the time from when an attempt was due until a worker claimed the job. Large dependency graphs are cut: the
    blockers that need attention come first (deleted, failed, cancelled, external).
    """
    with database.open() as app:
        job, history = app.jobs.get(id), app.jobs.history(id)
        relations = app.jobs.relations(id)
        traceback = _traceback(app, history) if with_traceback else None
    timeline = with_times(history)
    private = (("args", with_args), ("result", with_result), ("state", with_state))
    payloads = [name for name, wanted in private if wanted]
    if as_json:
        data = job_data(job, *payloads) | _relations_data(job, relations)
        data["history"] = [_entry_data(entry) for entry in timeline]
        document(data | ({"traceback": traceback} if with_traceback else {}))
        return
    now = datetime.now(UTC)
    fields([
        *_job_fields(job, now),
        *_relation_fields(job, relations, now),
        *((name, payload_text(job, name)) for name in payloads),
    ])  # fmt: skip
    for branch in _relation_trees(job, relations):
        say("")
        tree(branch)
    if timeline:
        say("")
        # The row of an attempt replaces the claim that started it.
        table(COLUMNS, [_row(one) for one in timeline if one.entry.name != "claimed"])
    if with_traceback:
        say("")
        say_lines(traceback.rstrip() if traceback else "No traceback stored.")


def _traceback(app: Holdfast, history: Sequence[HistoryEntry]) -> str | None:
    """Return the traceback of the newest attempt that has one."""
    for entry in reversed(history):
        fingerprint = entry.detail.get("fingerprint")
        if isinstance(fingerprint, str):
            return app.jobs.traceback(fingerprint)
    return None


# --- history ---


class TimedEntry(NamedTuple):
    """An entry of the history; an attempt with the seconds it waited and ran."""

    entry: HistoryEntry
    wait: float | None = None
    run: float | None = None


def with_times(history: Sequence[HistoryEntry]) -> list[TimedEntry]:
    """Compute how long each attempt waited and ran."""
    timed: list[TimedEntry] = []
    due: datetime | None = None  # since when the job could be claimed
    planned = False  # whether `due` is the run_at of an earlier event
    for entry in history:
        if entry.kind == "attempt":
            started = entry.detail.get("started_at")
            run = _seconds(started if isinstance(started, datetime) else entry.at, entry.detail.get("finished_at"))
            timed.append(TimedEntry(entry, _seconds(due, entry.at), run))
            continue
        timed.append(TimedEntry(entry))
        run_at = entry.detail.get("run_at")
        if isinstance(run_at, datetime):
            due, planned = run_at, True
        elif entry.name == "promoted" and planned:  # it was due before it was promoted
            planned = False
        elif entry.name != "claimed":
            due, planned = entry.at, False
    return timed


def _seconds(start: datetime | None, end: object) -> float | None:
    if start is None or not isinstance(end, datetime):
        return None
    return max(0.0, (end - start).total_seconds())


def _row(one: TimedEntry) -> Row:
    entry = one.entry
    is_attempt = entry.kind == "attempt"
    hidden = ("started_at", "finished_at", "fingerprint")
    words = detail_words(entry.name, {name: value for name, value in entry.detail.items() if name not in hidden})
    return [
        utc_text(entry.at),
        Cell(f"attempt {entry.attempt}", "bold") if is_attempt else entry.name,
        "" if one.wait is None else span(one.wait),
        "" if one.run is None else span(one.run),
        entry.actor or "",
        ", ".join([entry.name, *words] if is_attempt else words),
    ]


def _entry_data(one: TimedEntry) -> dict[str, Any]:
    times = {"wait_seconds": one.wait, "run_seconds": one.run} if one.entry.kind == "attempt" else {}
    return {**to_data(one.entry), **times}


# --- chain, blockers, waiting jobs, batch ---


def _relations_data(job: Job[Any], relations: Relations) -> dict[str, Any]:
    batch: dict[str, Any] | None = None
    if relations.batch_id is not None:
        progress = {} if relations.progress is None else to_data(relations.progress)
        batch = {"id": relations.batch_id, "callback": relations.is_callback, **progress}
    return {
        "external": job.is_external,
        "timeout_at": job.timeout_at,
        "chain_id": job.chain_id,
        "chain_index": job.chain_index,
        "chain_length": relations.chain_length,
        "chain": [_record_data(record) | {"index": record.chain_index} for record in relations.chain],
        "on_blocker_failure": job.on_blocker_failure,
        "blockers": [_node_data(node) for node in relations.blockers],
        "more_blockers": relations.more_blockers,
        "waiting": [_record_data(record) for record in relations.waiting],
        "more_waiting": relations.more_waiting,
        "batch": batch,
    }


def _record_data(record: JobRecord) -> dict[str, Any]:
    return {"id": record.id, "task": record.task, "status": record.status}


def _node_data(node: BlockerNode) -> dict[str, Any]:
    timeout_at = node.blocker.timeout_at
    return {
        **to_data(node.blocker),
        "external": bool(node.blocker.external),
        "timeout_at": None if timeout_at is None else as_datetime(timeout_at),
        "blockers": [_node_data(child) for child in node.children],
        "more_blockers": node.more,
        "repeated": node.is_repeated,
    }


# --- fields and trees ---


def _job_fields(job: Job[Any], now: datetime) -> list[Field]:
    progress = "" if job.progress is None else f"{job.progress:.0%} "
    error = ": ".join(part for part in (job.error_code, job.error_detail) if part)
    optional: list[Field] = [
        ("run at", f"{utc_text(job.run_at)} UTC, {due(job.run_at, now)}" if job.status == "scheduled" else ""),
        ("started", _ago(job.started_at, now)),
        ("finished", _ago(job.finished_at, now)),
        ("progress", f"{progress}{job.progress_text or ''}".rstrip()),
        ("timeout", "" if job.timeout is None else span(job.timeout)),
        ("expires", _expires(job, now)),
        ("key", job.key or ""),
        ("tags", ", ".join(job.tags)),
        ("worker", job.worker or ""),
        ("version", str(job.version or "")),
    ]
    if error:
        name = "reason" if job.status == "cancelled" else "error"
        optional.append((name, Cell(error, "red" if job.status == "failed" else "")))
    return [
        ("job", str(job.id)),
        ("task", Cell(f"{job.task}, external") if job.is_external else task_cell(job.task)),
        ("queue", job.queue),
        ("status", status_cell(job.status)),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("priority", str(job.priority)),
        ("created", _ago(job.created_at, now)),
        *((name, value) for name, value in optional if value),
    ]


def _expires(job: Job[Any], now: datetime) -> str:
    if job.expires_at is None or job.is_finished:
        return ""
    return f"{utc_text(job.expires_at)} UTC, {due(job.expires_at, now)}"


def _ago(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else f"{utc_text(moment)} UTC, {age(moment, now)} ago"


def _relation_fields(job: Job[Any], relations: Relations, now: datetime) -> list[Field]:
    found: list[Field] = []
    if relations.chain_length > 1:
        place = f"job {job.chain_index + 1:,} of {relations.chain_length:,}"
        found.append(("chain", f"{relations.chain[0].id}, {place}"))
    if relations.batch_id is not None:
        found.append(("batch", _batch_text(relations)))
    if job.timeout_at is not None:
        found.append(("deadline", f"{utc_text(job.timeout_at)} UTC, {due(job.timeout_at, now)}"))
    if relations.blockers and job.status == "blocked":
        found.append(("on blocker failure", job.on_blocker_failure))
    return found


def _batch_text(relations: Relations) -> str:
    text = f"{relations.batch_id}"
    if relations.is_callback:
        text += ", this job is its callback"
    if relations.progress is not None:
        text += f": {relations.progress.finished:,} of {relations.progress.total:,} finished"
        for name in ("failed", "cancelled"):
            count = getattr(relations.progress, name)
            text += f", {count:,} {name}" if count else ""
        text += "" if relations.progress.sealed else "; not sealed, so it cannot finish yet"
    return text


def _relation_trees(job: Job[Any], relations: Relations) -> list[Branch]:
    trees = []
    if relations.chain_length > 1:
        title = f"chain {relations.chain[0].id}, {relations.chain_length:,} jobs"
        trees.append(Branch([Cell(title, "bold")], _chain_branches(relations.chain, job.chain_index)))
    if relations.blockers:
        children = [*map(_node_branch, relations.blockers), *_more(relations.more_blockers)]
        trees.append(Branch([Cell("depends on", "bold")], children))
    if relations.waiting:
        children = [*(Branch(_record_cells(record)) for record in relations.waiting), *_more(relations.more_waiting)]
        trees.append(Branch([Cell("needed by", "bold")], children))
    return trees


def _chain_branches(chain: list[JobRecord], here: int) -> list[Branch]:
    """Return all jobs of a short chain; of a long one the first, the last, and those near the shown job."""
    last = chain[-1].chain_index
    shown = {record.chain_index: record for record in chain}
    if last >= MAX_LISTED:
        near = range(here - NEIGHBOURS, here + NEIGHBOURS + 1)
        shown = {index: record for index, record in shown.items() if index in (0, last) or index in near}
    branches, before = list[Branch](), -1
    for index, record in shown.items():
        branches += _more(index - before - 1, "…")
        mark = [Cell("(this job)", "bold")] if index == here else []
        branches.append(Branch([*_record_cells(record), *mark]))
        before = index
    return branches


def _record_cells(record: JobRecord) -> list[Cell | str]:
    return [_name(record.id, record.task), status_cell(record.status)]


def _name(id: int, task: str | None) -> str:
    return f"{id} {task_cell(task).text}"


def _node_branch(node: BlockerNode) -> Branch:
    blocker = node.blocker
    if blocker.id is None or blocker.status is None:
        return Branch([f"chain {blocker.chain_id}", Cell("deleted", "red")])
    cells: list[Cell | str] = [_name(blocker.id, blocker.task), status_cell(blocker.status)]
    if blocker.error_code and blocker.status == "failed":
        cells.append(Cell(blocker.error_code, "red"))
    if blocker.external:
        cells.append("external")
    if blocker.external and blocker.status == "blocked" and blocker.timeout_at is not None:
        cells.append(f"until {utc_text(as_datetime(blocker.timeout_at))} UTC")
    if blocker.id != blocker.chain_id:
        cells.append(f"of chain {blocker.chain_id}")
    if node.is_repeated:
        cells.append("(see above)")
    if len(node.children) > 1 and all(child.is_repeated for child in node.children):
        count = len(node.children) + node.more
        return Branch([*cells, Cell(f"({count:,} more: see above)", "dim")])
    if node.more and not node.children:
        return Branch([*cells, Cell(f"(… {node.more:,} more)", "dim")])
    return Branch(cells, [*map(_node_branch, node.children), *_more(node.more)])


def _more(count: int, words: str = "… and") -> list[Branch]:
    return [Branch([Cell(f"{words} {count:,} more", "dim")])] if count else []


@click.command(epilog=example("holdfast explain 42 --db app.db"))
@click.argument("id", type=job_id, shell_complete=complete_jobs)
@read_options
def explain(database: DatabaseOption, id: int, as_json: bool) -> None:
    """Explain why a job is not running, and what to do about it.

    Checks the job's state, schedule and blockers, whether its queue is paused, whether a live worker serves the queue
    and has the task, whether that worker has a free slot, and how many jobs are ahead of it. For a finished job, says
    how it finished.
    """
    with database.open() as app:
        explanation = app.jobs.explain(id)
    if as_json:
        document(explanation)
    else:
        paragraph(explanation.reason)
        paragraph(explanation.advice)
