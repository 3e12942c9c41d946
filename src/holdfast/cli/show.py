"""`holdfast show`: all about one job."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from ..app.job import Job
from ..app.jobs import HistoryEntry
from ..errors import BlobError, BlobMissing, InvalidPayload
from ..process import Holdfast
from .complete import complete_jobs
from .database import Database, takes_database
from .graph import as_data as graph_data
from .graph import draw, facts, look_around
from .jobs import as_data, payload_text, what
from .options import example, job_id
from .output import Cell, Column, document, fields, json_option, say, say_lines, state, table, tree
from .spans import Span, spans
from .text import age, due, iso, local, span, written

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
    database: Database, id: int, with_args: bool, with_result: bool, with_traceback: bool, as_json: bool
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


def _row(one: Span) -> list[Cell | str]:
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


def _entry_data(one: Span) -> dict[str, Any]:
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
