"""Query plans: what runs for every job is served by an index, however many rows there are."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import holdfast.store.sqlite
from holdfast import Holdfast

SQL = Path(holdfast.store.sqlite.__file__).parent / "sql"

# The statements that run once or more per job or claim.
HOT = [
    "peek_messages",
    "claim_messages",
    "claim_next_message",
    "claim_tasks",
    "claim_readable",
    "newest_versions",
    "return_unfit",
    "claim_one",
    "ready_pairs",
    "ready_pairs_in",
    "succeed_many",
    "unsettled",
    "interrupt",
    "give_back",
    "renew",
    "held",
    "next_due",
    "awaited",
    "promote",
    "recover",
    "recover_spent",
    "find_live_key",
    "find_finished_key",
    "replace",
    "succeed",
    "succeed_without_history",
    "retry",
    "fail",
    "stop",
    "snooze",
    "release",
    "get",
    "events_of",
    "attempts_of",
    "traceback",
    "due_schedules",
    "next_occurrence",
    "advance_schedule",
    "add_fire",
    "set_fire_job",
    "prune_fires",
    "continue_many",
    "chains_to_wait_for",
    "add_blockers",
    "mark_awaited",
    "queue_finished",
    "queue_succeeded",
    "waits_for_itself",
    "edges_of_ended",
    "mark_edges",
    "unblock",
    "fail_blocked",
    "cancel_blocked",
    "hold_again",
    "blocked_if_requeued",
    "time_out_external",
    "requeue",
    "cancel",
    "complete",
    "fail_outside",
    "delete",
    "chains_among",
    "delete_matching_chain",
    "chain",
    "chain_end",
    "jobs_of_chain",
    "chains_waiting",
    "waiting_for",
    "delete_jobs",
    "blockers",
    "batch_is_open",
    "batch_counts",
    "batch",
    "ended_batches",
    "batch_done",
    "fold_position",
    "last_event_to_fold",
    "event_groups",
    "event_failures",
    "removed_jobs",
    "delete_events_of_removed",
    "mark_args_unused",
    "mark_results_unused",
]


def statement_of(app: Holdfast, name: str) -> str:
    sql: str = getattr(app.store.database.sql, name)  # type: ignore[attr-defined]
    filled = sql.replace("{columns}", "*").replace("{where}", "true").replace("{order}", "DESC")
    return filled.replace("{table}", "holdfast_tags").replace("{broken}", "false")


def plan(connection: sqlite3.Connection, statement: str) -> list[str]:
    named = re.findall(r"(?<![\w:]):([a-z_]+)", statement)
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    values: Any = dict.fromkeys(named, "1") or ["1"] * (max(numbered) if numbered else statement.count("?"))
    return [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement, values).fetchall()]


def is_scan(line: str) -> bool:
    """A walk over all rows of a table of ours that grows, or over all entries of one of its indexes."""
    ours = (
        r"holdfast_(jobs|events|attempts|tracebacks|tags|schedules|fires|blockers|batches)|job|last|part|waiting|edge"
    )
    return re.search(rf"^SCAN ({ours}|before)\b(?! VIRTUAL)", line) is not None


def test_no_hot_statement_scans_a_table(app: Holdfast, conn: sqlite3.Connection) -> None:
    plans = {name: plan(conn, statement_of(app, name)) for name in HOT}
    assert {name: lines for name, lines in plans.items() if any(is_scan(line) for line in lines)} == {}


SERVED_BY = {
    "peek_messages": {"jobs_scheduled", "jobs_running", "jobs_ready"},
    "claim_messages": {"jobs_ready"},
    "claim_next_message": {"jobs_scheduled", "jobs_running", "jobs_ready"},
    "removed_jobs": {"events_removed"},
    "claim_tasks": {"jobs_ready"},
    "ready_pairs": {"jobs_expires", "jobs_ready", "jobs_scheduled", "jobs_running", "jobs_versioned"},
    "ready_pairs_in": {"jobs_expires", "jobs_ready", "jobs_scheduled", "jobs_running", "jobs_versioned"},
    "claim_readable": {"jobs_ready"},
    "newest_versions": {"jobs_versioned"},
    "recover_lost": {"jobs_running"},
    "recover_lost_spent": {"jobs_running"},
    "renew_for": {"jobs_running"},
    "workers_with_expired_leases": {"jobs_running"},
    "leases_of": {"jobs_running"},
    "claimed_by_workers": {"jobs_running"},
    "next_due": {"jobs_expires", "jobs_scheduled", "jobs_running"},
    "promote": {"jobs_scheduled"},
    "time_out_external": {"jobs_expires"},
    "expire": {"jobs_expires"},
    "batch_counts": {"jobs_batch"},
    "ended_batches": {"jobs_batch"},
    "chain_end": {"jobs_chain"},
    "edges_of_ended": {"blockers_chain", "jobs_chain"},
    "unblock": {"blockers_holding"},
    "recover": {"jobs_running"},
    "recover_spent": {"jobs_running"},
}


def test_claims_and_sweeps_use_their_partial_indexes(app: Holdfast, conn: sqlite3.Connection) -> None:
    used = {
        name: set(re.findall(r"INDEX holdfast_(\w+)", str(plan(conn, statement_of(app, name))))) for name in SERVED_BY
    }
    assert used == SERVED_BY


def test_no_claim_or_sweep_sorts_more_than_it_takes(app: Holdfast, conn: sqlite3.Connection) -> None:
    """A sort within the search for rows would read all that is ready before the first is claimed."""
    names = ["claim_messages", "claim_tasks", "promote", "recover", "recover_spent"]
    sorts = {name: str(plan(conn, statement_of(app, name))).count("TEMP B-TREE") for name in names}
    # The tasks' claim merges the few rows of each queue and task, which were limited before.
    assert sorts == dict.fromkeys(names, 0) | {"claim_tasks": 1}


# These are there for lists. What runs for every job has an index of its own, that ended jobs are not in.
FOR_LISTS = re.compile(r"INDEX holdfast_(jobs_logged|jobs_error|jobs_fingerprint)\b")


def test_nothing_but_a_list_or_a_count_uses_the_indexes_for_lists(app: Holdfast, conn: sqlite3.Connection) -> None:
    names = [
        name
        for file in SQL.glob("*.sql")
        if file.stem != "listing"
        for name in re.findall(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        if file.name != "listing.sql" and not name.startswith("insert")  # these are filled in elsewhere
    ]
    plans = {name: plan(conn, statement_of(app, name)) for name in names}
    assert {name for name, lines in plans.items() if FOR_LISTS.search(str(lines))} <= {"recounted"}
