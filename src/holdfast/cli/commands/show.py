"""`holdfast show`: all about one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import msgspec
from msgspec import Struct

from ...app.job import Job
from ...app.jobs import HistoryEntry
from ...app.workflows import BatchProgress
from ...clock import as_datetime
from ...errors import BatchNotFound, BlobError, BlobMissing, InvalidPayload
from ...model.blocker import Blocker
from ...model.job import JobRecord
from ...supervisor import Holdfast
from ..options import DatabaseOption, complete_jobs, example, job_id, takes_database
from ..output import (
    Branch,
    Cell,
    Column,
    age,
    document,
    due,
    fields,
    iso,
    json_option,
    local,
    optional_iso,
    say,
    say_lines,
    span,
    state,
    table,
    tree,
    written,
)
from .jobs import as_data, payload_text, what


class AttemptTimes(NamedTuple):
    """A line of the history; of an attempt, with the seconds it waited before and ran."""

    entry: HistoryEntry
    wait: float | None = None
    run: float | None = None


def spans(history: Sequence[HistoryEntry]) -> list[AttemptTimes]:
    found: list[AttemptTimes] = []
    due: datetime | None = None  # since when the job could have been taken
    planned = False  # whether that was known before
    for entry in history:
        if entry.kind == "attempt":
            found.append(AttemptTimes(entry, _seconds(due, entry.at), _run(entry)))
            continue
        found.append(AttemptTimes(entry))
        run_at = entry.detail.get("run_at")
        if isinstance(run_at, datetime):
            due, planned = run_at, True
        elif entry.name == "promoted" and planned:  # it was due before somebody noticed
            planned = False
        elif entry.name != "claimed":
            due, planned = entry.at, False
    return found


def _run(entry: HistoryEntry) -> float | None:
    started = entry.detail.get("started_at")
    begun = started if isinstance(started, datetime) else entry.at
    return _seconds(begun, entry.detail.get("finished_at"))


def _seconds(start: datetime | None, end: object) -> float | None:
    if start is None or not isinstance(end, datetime):
        return None
    return max(0.0, (end - start).total_seconds())


MOST_IN_A_ROW = 10
MOST_BY_LEVEL = (10, 5, 5, 3, 3)
MOST_NODES = 60
NEIGHBOURS = 2
CHAIN_JOBS = 1000


class Node(Struct):
    """A chain that is waited for, and what that waits for in turn."""

    blocker: Blocker
    below: list[Node]
    more: int = 0  # that are left out below it
    is_repeated: bool = False  # it stands above already, with all that is below it


class Around(Struct):
    chain: list[JobRecord]
    blockers: list[Node]
    more_blockers: int
    waiting: list[JobRecord]
    more_waiting: int
    batch_id: int | None
    is_callback: bool
    progress: BatchProgress | None

    @property
    def length(self) -> int:
        return self.chain[-1].chain_index + 1 if self.chain else 1


def look_around(app: Holdfast, job: Job[Any]) -> Around:
    blockers, more_blockers = _Walk(app).from_job(job.id)
    workflows = app.store.workflows
    waiting = workflows.waiting_for(job.chain_id, MOST_IN_A_ROW)
    callback_of = workflows.batch(callback=job.id) if job.batch_id is None else None
    batch_id = job.batch_id if callback_of is None else callback_of.id
    return Around(
        chain=workflows.chain(job.chain_id, near=job.chain_index, each_side=CHAIN_JOBS // 2),
        blockers=blockers,
        more_blockers=more_blockers,
        waiting=waiting.found,
        more_waiting=waiting.total - len(waiting.found),
        batch_id=batch_id,
        is_callback=callback_of is not None,
        progress=None if batch_id is None else _progress(app, batch_id),
    )


def _progress(app: Holdfast, batch_id: int) -> BatchProgress | None:
    try:
        return app.batches.get(batch_id).progress()
    except BatchNotFound:  # it was deleted by hand
        return None


class _Walk:
    """Up, from a job to what it waits for, as far as there is something in the way and room to show it."""

    def __init__(self, app: Holdfast) -> None:
        self._store, self._room = app.store, MOST_NODES
        self._seen: dict[int, int] = {}  # chains, and from which level on they need not be shown again

    def from_job(self, job_id: int, level: int = 0) -> tuple[list[Node], int]:
        room = min(MOST_BY_LEVEL[level], self._room) if level < len(MOST_BY_LEVEL) else 0
        blockers = self._store.workflows.blockers(job_id, room, urgent_first=True)
        if level == 0:
            return [self._node(one, level) for one in blockers.found], blockers.total - len(blockers.found)
        # What a blocker does not wait for any more says nothing about why it is where it is.
        found = [one for one in blockers.found if one.status != "succeeded"]
        left_out = blockers.holding - sum(one.holds for one in found)
        return [self._node(one, level) for one in found], max(0, left_out)

    def _node(self, one: Blocker, level: int) -> Node:
        if self._seen.get(one.chain_id, level + 1) <= level:
            return Node(one, [], is_repeated=True)
        self._room = max(0, self._room - 1)
        if one.id is None or one.status == "succeeded":
            self._seen[one.chain_id] = 0
            return Node(one, [])
        below, more = self.from_job(one.id, level + 1)
        is_cut = more > 0 and not below  # there may be room where it stands next, further up
        self._seen[one.chain_id] = level if is_cut else 0
        return Node(one, below, more)


# --- for programs ---


def graph_data(job: Job[Any], around: Around) -> dict[str, Any]:
    return {
        "external": job.is_external,
        "timeout_at": optional_iso(job.timeout_at),
        "chain_id": job.chain_id,
        "chain_index": job.chain_index,
        "chain_length": around.length,
        "chain": [_link_data(link) | {"index": link.chain_index} for link in around.chain],
        "on_blocker_failure": job.on_blocker_failure,
        "blockers": [_node_data(node) for node in around.blockers],
        "more_blockers": around.more_blockers,
        "waiting": [_link_data(link) for link in around.waiting],
        "more_waiting": around.more_waiting,
        "batch": _batch_data(around),
    }


def _link_data(link: JobRecord) -> dict[str, Any]:
    return {"id": link.id, "task": link.task, "status": link.status}


def _node_data(node: Node) -> dict[str, Any]:
    one = node.blocker
    return {
        "id": one.id,
        "task": one.task,
        "status": one.status,
        "chain_id": one.chain_id,
        "holds": one.holds,
        "error_code": one.error_code,
        "external": bool(one.external),
        "timeout_at": None if one.timeout_at is None else iso(as_datetime(one.timeout_at)),
        "blockers": [_node_data(below) for below in node.below],
        "more_blockers": node.more,
        "repeated": node.is_repeated,
    }


def _batch_data(around: Around) -> dict[str, Any] | None:
    if around.batch_id is None:
        return None
    data: dict[str, Any] = {"id": around.batch_id, "callback": around.is_callback}
    if around.progress is not None:
        p = around.progress
        counts = ("total", "blocked", "scheduled", "ready", "running", "succeeded", "failed", "cancelled", "finished")
        data |= {name: getattr(p, name) for name in counts}
        data |= {"sealed": p.sealed, "done_at": optional_iso(p.done_at)}
    return data


# --- for people ---


def facts(job: Job[Any], around: Around, now: datetime) -> list[tuple[str, Cell | str]]:
    """What is said among the fields of the job."""
    lines: list[tuple[str, Cell | str]] = []
    if around.length > 1:
        lines.append(("chain", f"{around.chain[0].id}, job {job.chain_index + 1:,} of {around.length:,}"))
    if around.batch_id is not None:
        lines.append(("batch", _batch_words(around)))
    if job.timeout_at is not None:
        lines.append(("deadline", f"{local(job.timeout_at)} UTC, {due(job.timeout_at, now)}"))
    if around.blockers and job.status == "blocked":
        lines.append(("on blocker failure", job.on_blocker_failure))
    return lines


def _batch_words(around: Around) -> str:
    words = f"{around.batch_id}"
    if around.is_callback:
        words += ", which enqueued it when all had ended"
    if around.progress is not None:
        words += f": {around.progress.finished:,} of {around.progress.total:,} ended"
        for name in ("failed", "cancelled"):
            count = getattr(around.progress, name)
            words += f", {count:,} {name}" if count else ""
        words += "" if around.progress.sealed else "; not sealed, so it cannot end yet"
    return words


def draw(job: Job[Any], around: Around) -> list[Branch]:
    drawn = []
    if around.length > 1:
        links = _abbreviated(around.chain, job.chain_index)
        drawn.append(Branch([Cell(f"chain {around.chain[0].id}, {around.length:,} jobs", "bold")], links))
    if around.blockers:
        below = [*map(_node_branch, around.blockers), *_more(around.more_blockers)]
        drawn.append(Branch([Cell("depends on", "bold")], below))
    if around.waiting:
        below = [*(Branch(_link(link)) for link in around.waiting), *_more(around.more_waiting)]
        drawn.append(Branch([Cell("needed by", "bold")], below))
    return drawn


def _abbreviated(chain: list[JobRecord], here: int) -> list[Branch]:
    """All of a short one; of a long one the first, the last, and those near the job that is shown."""
    last = chain[-1].chain_index
    shown = {one.chain_index: one for one in chain}
    if last >= MOST_IN_A_ROW:
        near = range(here - NEIGHBOURS, here + NEIGHBOURS + 1)
        shown = {index: one for index, one in shown.items() if index in (0, last) or index in near}
    drawn, before = list[Branch](), -1
    for index, one in shown.items():
        drawn += _more(index - before - 1, "…")
        mark = [Cell("(this one)", "bold")] if index == here else []
        drawn.append(Branch([*_link(one), *mark]))
        before = index
    return drawn


def _link(link: JobRecord) -> list[Cell | str]:
    return [_name(link.id, link.task), state(link.status)]


def _name(id: int, task: str | None) -> str:
    return f"{id} {'message' if task is None else task}"


def _node_branch(node: Node) -> Branch:
    one = node.blocker
    if one.id is None or one.status is None:
        return Branch([f"chain {one.chain_id}", Cell("deleted", "red")])
    cells: list[Cell | str] = [_name(one.id, one.task), state(one.status)]
    if one.error_code and one.status == "failed":
        cells.append(Cell(one.error_code, "red"))
    if one.external:
        cells.append("external")
    if one.external and one.status == "blocked" and one.timeout_at is not None:
        cells.append(f"until {local(as_datetime(one.timeout_at))} UTC")
    if one.id != one.chain_id:
        cells.append(f"of chain {one.chain_id}")
    if node.is_repeated:
        cells.append("(see above)")
    if len(node.below) > 1 and all(below.is_repeated for below in node.below):
        count = len(node.below) + node.more
        return Branch([*cells, Cell(f"({count:,} more: see above)", "dim")])
    if node.more and not node.below:
        return Branch([*cells, Cell(f"(… {node.more:,} more)", "dim")])
    return Branch(cells, [*map(_node_branch, node.below), *_more(node.more)])


def _more(count: int, words: str = "… and") -> list[Branch]:
    return [Branch([Cell(f"{words} {count:,} more", "dim")])] if count else []


COLUMNS = (
    Column("AT (UTC)"),
    Column("WHAT"),
    Column("WAIT", right=True, spare=1),
    Column("RUN", right=True, spare=1),
    Column("BY", least=8, spare=3),
    Column("DETAIL", least=14, spare=2),
)


@click.command(epilog=example("holdfast show 42 --db app.db --traceback"))
@click.argument("id", type=job_id, shell_complete=complete_jobs)
@click.option("--args", "with_args", is_flag=True, help="Show its payload too.")
@click.option("--result", "with_result", is_flag=True, help="Show its result too.")
@click.option("--traceback", "with_traceback", is_flag=True, help="Show the traceback of its last error too.")
@takes_database
@json_option
def show(
    database: DatabaseOption, id: int, with_args: bool, with_result: bool, with_traceback: bool, as_json: bool
) -> None:
    """Show all about one job.

    Its fields, its chain, what it waits for and who waits for it, its history, its last error.
    """
    with database.open() as app:
        job, history = app.jobs.get(id), app.jobs.history(id)
        around = look_around(app, job)
        traceback = _traceback(app, history) if with_traceback else None
    timeline = spans(history)
    if as_json:
        data = as_data(job, with_args=with_args, with_result=with_result)
        data |= graph_data(job, around)
        data["history"] = [_entry_data(one) for one in timeline]
        document(data | ({"traceback": traceback} if with_traceback else {}))
        return
    private: list[tuple[str, Cell | str]] = []
    if with_args:
        private.append(("args", payload_text(job)))
    if with_result:
        private.append(("result", _result_text(job)))
    now = datetime.now(UTC)
    fields([*_about(job, now), *facts(job, around, now), *private])
    for branch in draw(job, around):
        say("")
        tree(branch)
    if timeline:
        say("")
        # An attempt stands for the claim before it.
        table(COLUMNS, [_row(one) for one in timeline if one.entry.name != "claimed"])
    if with_traceback:
        say("")
        say_lines(traceback.rstrip() if traceback else "No traceback is kept.")


def _about(job: Job[Any], now: datetime) -> list[tuple[str, Cell | str]]:
    lines: list[tuple[str, Cell | str]] = [
        ("job", str(job.id)),
        ("task", Cell(f"{job.task}, external") if job.is_external else what(job)),
        ("queue", job.queue),
        ("status", state(job.status)),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("priority", str(job.priority)),
        ("created", f"{local(job.created_at)} UTC, {age(job.created_at, now)} ago"),
    ]
    if job.status == "scheduled":
        lines.append(("run at", f"{local(job.run_at)} UTC, {due(job.run_at, now)}"))
    for name, moment in (("started", job.started_at), ("finished", job.finished_at)):
        if moment is not None:
            lines.append((name, f"{local(moment)} UTC, {age(moment, now)} ago"))
    if job.progress is not None or job.progress_text:
        share = "" if job.progress is None else f"{job.progress:.0%} "
        lines.append(("progress", f"{share}{job.progress_text or ''}".rstrip()))
    optional = {
        "timeout": None if job.timeout is None else span(job.timeout),
        "key": job.key,
        "tags": ", ".join(job.tags),
        "worker": job.worker,
    }
    lines += [(name, value) for name, value in optional.items() if value]
    reason = ": ".join(part for part in (job.error_code, job.error_detail) if part)
    if reason:
        name = "reason" if job.status == "cancelled" else "error"
        lines.append((name, Cell(reason, "red" if job.status == "failed" else "")))
    return lines


def _row(one: AttemptTimes) -> list[Cell | str]:
    entry = one.entry
    return [
        local(entry.at),
        Cell(f"attempt {entry.attempt}", "bold") if entry.kind == "attempt" else entry.name,
        "" if one.wait is None else span(one.wait),
        "" if one.run is None else span(one.run),
        entry.actor or "",
        _detail(entry),
    ]


def _detail(entry: HistoryEntry) -> str:
    detail = written(entry.detail, local)
    words = [entry.name] if entry.kind == "attempt" else []
    if "from" in detail and "to" in detail:
        words.append(f"{detail.pop('from')} → {detail.pop('to')}")
    if "run_at" in detail:
        words.append(f"due {detail.pop('run_at')}")
    error = [str(detail.pop(name)) for name in ("error_code", "error_detail") if detail.get(name)]
    if error:
        words.append(": ".join(error))
    for name in ("started_at", "finished_at", "fingerprint"):
        detail.pop(name, None)
    words += [f"{name}={value}" for name, value in detail.items()]
    return ", ".join(words)


def _entry_data(one: AttemptTimes) -> dict[str, Any]:
    entry = one.entry
    data = {
        "at": iso(entry.at),
        "kind": entry.kind,
        "name": entry.name,
        "attempt": entry.attempt,
        "actor": entry.actor,
        "detail": written(entry.detail, iso),
    }
    if entry.kind == "attempt":
        data |= {"wait_seconds": one.wait, "run_seconds": one.run}
    return data


def _traceback(app: Holdfast, history: Sequence[HistoryEntry]) -> str | None:
    """That of the newest attempt that has one."""
    for entry in reversed(history):
        fingerprint = entry.detail.get("fingerprint")
        if isinstance(fingerprint, str):
            return app.jobs.traceback(fingerprint)
    return None


def _result_text(job: Job[Any]) -> str:
    try:
        return msgspec.json.encode(job.result).decode()
    except (InvalidPayload, BlobMissing, BlobError) as error:
        return f"({error})"
