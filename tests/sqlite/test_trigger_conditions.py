"""Every condition of the triggers: what they write into the log and beside it, for changes of all kinds.

`faults/mutation.py` removes and inverts the conditions one by one: each time a test must fail.
"""

from collections import Counter
from random import Random
from typing import Any

import pytest

from support.statement_bench import CREATED, NOW, Bench, Row, some_jobs

BLOBS = ["a" * 64, "b" * 64]
ZONE = 8192
ENDED = ("succeeded", "failed", "cancelled")


def rows(bench: Bench, question: str, *given: Any) -> list[Row]:
    return [dict(row) for row in bench.connection.execute(question, given)]


def new_events(bench: Bench, after: int) -> list[Row]:
    return rows(bench, "SELECT * FROM holdfast_events WHERE id > ? ORDER BY id", after)


def last_event(bench: Bench) -> int:
    return int(rows(bench, "SELECT coalesce(max(id), 0) AS id FROM holdfast_events")[0]["id"])


def more_jobs(random: Random, count: int) -> list[Row]:
    """Jobs with all that a trigger looks at."""
    return [
        job
        | {
            "continued": random.choice([0, 0, 1]),
            "finished_at": random.choice([None, NOW - 7]),
            "updated_at": random.choice([None, NOW - 9]),
            "error_code": random.choice([None, "OLD"]),
            "args_blob": random.choice([None, None, BLOBS[0]]),
            "result_blob": random.choice([None, None, BLOBS[1]]),
            "chain_id": random.choice([None, 1]),
            "chain_index": number + 1,
            "batch_id": random.choice([None, None, 3]),
        }
        for number, job in enumerate(some_jobs(random, count))
    ]


@pytest.fixture
def root(bench: Bench) -> int:
    """The root of the chain that some of the jobs belong to, and a batch."""
    bench.insert("jobs", [{"task": "root", "status": "succeeded", "continued": 1, "history": 0}])
    bench.insert("batches", [{"id": 3, "created_at": NOW}, {"id": 4, "created_at": NOW}])
    return 1


# --- inserts ---


@pytest.mark.parametrize("late", [-1, 0, 1])
@pytest.mark.parametrize("status", ["new", "ready", "blocked"])
@pytest.mark.parametrize("history", [0, 1])
@pytest.mark.parametrize("tags", [None, '["x", "x", "y"]'])
@pytest.mark.parametrize("batch", [None, 3])
def test_an_insert_is_completed_and_logged(
    bench: Bench, late: int, status: str, history: int, tags: str | None, batch: int | None
) -> None:
    bench.insert("jobs", [{"task": "other", "status": "failed", "run_at": NOW, "created_at": NOW}])
    before = last_event(bench)
    job: Row = {
        "batch_id": batch,
        "task": "work",
        "status": status,
        "history": history,
        "tags": tags,
        "created_at": NOW,
        "run_at": NOW + late,
    }
    bench.insert("jobs", [job])
    becomes = status if status != "new" else "scheduled" if late > 0 else "ready"
    assert [row["status"] for row in bench.jobs()] == ["failed", becomes]
    logged = [(one["event"], one["new_status"], one["old_status"]) for one in new_events(bench, before)]
    assert logged == [("enqueued", becomes, None)] * history
    assert [row["tag"] for row in rows(bench, "SELECT tag FROM holdfast_tags ORDER BY tag")] == ["x", "y"] * bool(
        tags
    )


def test_the_newest_id_of_the_log_is_never_given_away(bench: Bench) -> None:
    bench.insert("events", [{"id": number, "at": NOW, "event": "paused"} for number in (1, 2, 3)])
    bench.connection.execute("DELETE FROM holdfast_events WHERE id = 2")
    assert [(one["id"], one["event"]) for one in new_events(bench, 0)] == [(1, "paused"), (3, "paused")]
    bench.connection.execute("DELETE FROM holdfast_events WHERE id = 3")
    assert [(one["id"], one["event"]) for one in new_events(bench, 0)] == [(1, "paused"), (3, "removed")]


# --- changes ---


def expected_event(old: Row, new: Row) -> Row:
    """What is logged of a transition."""
    actor = new["worker"] if new["actor"] is None else new["actor"]
    was_running, by_worker = old["status"] == "running", actor is not None and actor == old["worker"]
    started = new["updated_at"] if new["started_at"] is None else new["started_at"]
    fails = new["error_code"] is not None and new["transition"] in ("failed", "retry_scheduled", "recovered")
    traced = new["fingerprint"] is not None and new["transition"] in ("failed", "retry_scheduled")
    timed = was_running and by_worker
    return {
        "event": new["transition"],
        "actor": actor,
        "old_status": old["status"],
        "new_status": new["status"],
        "run_at": new["run_at"] if new["status"] == "scheduled" else None,
        "worker": old["worker"] if was_running and actor != old["worker"] else None,
        "claimed_at": old["claimed_at"] if was_running and new["status"] != "running" else None,
        "started_at": new["started_at"] if was_running else None,
        "waited": max(0, started - max(old["run_at"], old["created_at"])) if timed else None,
        "ran": max(0, new["updated_at"] - started) if timed else None,
        "error_code": new["error_code"] if fails else None,
        "error_detail": new["error_detail"] if fails else None,
        "fingerprint": new["fingerprint"] if traced else None,
    }


def expected_edits(old: Row, new: Row) -> list[Row]:
    """What is logged of a change by plain SQL."""
    if not new["history"]:
        return []
    moved = (old["queue"], old["task"]) != (new["queue"], new["task"])
    was_running, found = old["status"] == "running", []
    if moved:
        found.append({"queue": old["queue"], "task": old["task"], "old_status": old["status"], "new_status": None})
    if moved or old["status"] != new["status"]:
        change = {
            "queue": new["queue"],
            "task": new["task"],
            "old_status": None if moved else old["status"],
            "new_status": new["status"],
            "run_at": new["run_at"] if new["status"] == "scheduled" else None,
            "worker": old["worker"] if was_running else None,
            "claimed_at": old["claimed_at"] if was_running and new["status"] != "running" else None,
            "started_at": new["started_at"] if was_running else None,
        }
        found.append(change)
    return [{"event": "edited"} | one for one in found]


def is_part_of_a_workflow(job: Row) -> bool:
    belongs = job["chain_id"] is not None or job["awaited"] or job["batch_id"] is not None
    return bool(belongs and not job["continued"])


def a_change(random: Random, job: Row) -> Row:
    """Values to set: of a transition, or by plain SQL."""
    status = random.choice(["ready", "scheduled", "running", "blocked", *ENDED, job["status"]])
    change = {"status": status, "max_attempts": 9}
    if random.random() < 0.6:
        if random.random() < 0.2:
            change["queue"] = random.choice(["a", "b"])  # no transition does, but only plain SQL is logged as such
        return change | {
            "revision": job["revision"] + 1,
            "transition": random.choice(["failed", "retry_scheduled", "recovered", "snoozed"]),
            "actor": random.choice([None, "w1", "w2"]),
            "updated_at": NOW,
            "started_at": random.choice([None, NOW - 3]),
            "run_at": NOW + random.choice([-5, 5]),
            "error_code": random.choice([None, "E"]),
            "error_detail": "detail",
            "fingerprint": random.choice([None, "F"]),
        }
    if random.random() < 0.3:
        change["revision"] = job["revision"]  # sets it, and does not change it
    if random.random() < 0.5:
        change |= {"queue": random.choice(["a", "b"]), "task": random.choice([None, "one", "two"])}
    if random.random() < 0.3:
        change["created_at"] = CREATED - random.choice([0, 1])
    if random.random() < 0.3:
        change["history"] = random.choice([0, 1])
    return change


def update(bench: Bench, job: Row, change: Row) -> None:
    values = ", ".join(f"{name} = ?" for name in change)
    bench.connection.execute(f"UPDATE holdfast_jobs SET {values} WHERE id = ?", [*change.values(), job["id"]])  # noqa: S608


def test_a_change_is_logged_and_noted(bench: Bench, root: int) -> None:
    random, seen = Random(7), Counter[str]()
    bench.insert("jobs", more_jobs(random, 60))
    bench.connection.execute("DELETE FROM holdfast_endings")
    for job in bench.jobs("task IS NOT 'root'") * 12:
        change = a_change(random, job)
        before = last_event(bench)
        with bench.undone():
            bench.connection.execute("UPDATE holdfast_jobs SET chain_ended_at = 17 WHERE id = 1")
            bench.connection.execute("DELETE FROM holdfast_zones")
            update(bench, job, change)
            (new,) = bench.jobs(f"id = {job['id']}")
            (of_root,) = bench.jobs("id = 1")
            events = new_events(bench, before)
            endings = rows(bench, "SELECT chain_id, batch_id FROM holdfast_endings")
            zones = rows(bench, "SELECT * FROM holdfast_zones")
        by_sql = new["revision"] == job["revision"]
        wanted = expected_edits(job, new) if by_sql else [expected_event(job, new)] * job["history"]
        assert [{name: event[name] for name in one} for event, one in zip(events, wanted, strict=True)] == wanted
        was_over, is_over = job["status"] in ENDED, new["status"] in ENDED
        ends = is_part_of_a_workflow(new) and is_over and not was_over
        assert endings == [{"chain_id": new["chain_id"] or new["id"], "batch_id": new["batch_id"]}] * ends
        ended_at = 17
        if new["chain_id"] == 1 and not new["continued"] and was_over != is_over:
            at = next(one for one in (new["finished_at"], new["updated_at"], new["created_at"]) if one is not None)
            ended_at = at if is_over else None
        assert of_root["chain_ended_at"] == ended_at
        rezoned = by_sql and new["history"]
        rezoned = rezoned and (new["created_at"], new["history"]) != (job["created_at"], job["history"])
        edge = {"first_at": new["created_at"], "last_at": new["created_at"]}
        states = {one: int(new["status"] == one) for one in ("succeeded", "cancelled")}
        assert zones == [{"zone": new["id"] // ZONE} | edge | states] * bool(rezoned)
        seen.update(ends=ends, rezoned=bool(rezoned), events=len(wanted), chains=ended_at != 17)
    assert min(seen.values()) > 5, seen


def test_a_changed_id_is_in_its_zone(bench: Bench) -> None:
    bench.insert("jobs", [{"id": 5, "task": "work", "created_at": NOW}])
    bench.connection.execute("UPDATE holdfast_jobs SET id = ?", (3 * ZONE,))
    assert [one["zone"] for one in rows(bench, "SELECT zone FROM holdfast_zones")] == [3]


# --- deletions ---


def test_a_deletion_is_logged_and_noted(bench: Bench, root: int) -> None:
    random, seen = Random(8), Counter[str]()
    bench.insert("jobs", more_jobs(random, 150))
    bench.connection.execute("DELETE FROM holdfast_endings")
    folded = last_event(bench) // 2
    bench.connection.execute("UPDATE holdfast_fold SET cursor = ?", (folded,))
    for job in bench.jobs("task IS NOT 'root'"):
        before = last_event(bench)
        old = new_events(bench, 0)
        with bench.undone():
            bench.connection.execute("DELETE FROM holdfast_jobs WHERE id = ?", (job["id"],))
            events = new_events(bench, 0)
            endings = rows(bench, "SELECT chain_id, batch_id FROM holdfast_endings")
            batches = rows(bench, "SELECT id, deleted FROM holdfast_batches ORDER BY id")
            unused = [row["name"] for row in rows(bench, "SELECT name FROM holdfast_unused_blobs ORDER BY name")]
        left = [one for one in old if one["job_id"] != job["id"] or one["id"] > folded]
        assert [one for one in events if one["id"] <= before] == left
        logged = [(one["event"], one["job_id"], one["old_status"]) for one in events if one["id"] > before]
        assert logged == [("removed", job["id"], job["status"])] * job["history"]
        ends = bool(job["awaited"] or job["batch_id"] is not None)
        assert endings == [{"chain_id": job["id"] if job["awaited"] else None, "batch_id": job["batch_id"]}] * ends
        lost = int(job["batch_id"] == 3 and job["status"] != "succeeded")
        assert [row["deleted"] for row in batches] == [lost, 0]
        assert unused == [name for name in (job["args_blob"], job["result_blob"]) if name]
        alone = [job["history"], job["awaited"], job["batch_id"], job["args_blob"], job["result_blob"]]
        if sum(map(bool, alone)) == 1:
            seen.update({"history awaited batch args result".split()[list(map(bool, alone)).index(True)]: 1})  # noqa: SIM905
    assert len(seen) == 5, "each alone makes the trigger run"


# --- the index of the log by job ---


def indexed(bench: Bench) -> set[tuple[int, int]]:
    return {(one["jobs"], one["events"]) for one in rows(bench, "SELECT * FROM holdfast_event_blocks")}


def fold_up_to(bench: Bench, cursor: int) -> None:
    bench.connection.execute("UPDATE holdfast_fold SET cursor = ?", (cursor,))


def insert_events(bench: Bench, *jobs: Any) -> None:
    """Insert an event of each of these jobs, with the ids 0, 1, 2 and so on. A block has eight of each."""
    bench.insert("events", [{"id": id, "job_id": job, "at": NOW, "event": "x"} for id, job in enumerate(jobs)])


def test_the_events_that_a_fold_passes_are_indexed_and_no_others(bench: Bench) -> None:
    insert_events(bench, 0, 7, 8, 8, None, 15, 16, 24, 7, 32, 40, 48)
    fold_up_to(bench, 9)
    assert indexed(bench) == {(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (4, 1)}
    bench.connection.execute("DELETE FROM holdfast_event_blocks WHERE jobs < 3")
    fold_up_to(bench, 10)
    assert indexed(bench) == {(3, 0), (4, 1), (5, 1)}, "those before the cursor are not indexed again"


def test_a_block_is_indexed_once_though_two_folds_end_in_it(bench: Bench) -> None:
    insert_events(bench, 1, 2, 3)
    fold_up_to(bench, 1)
    fold_up_to(bench, 2)
    assert indexed(bench) == {(0, 0)}


def test_an_event_of_a_job_that_has_no_number_does_not_keep_the_fold_from_moving(bench: Bench) -> None:
    bench.connection.execute("PRAGMA ignore_check_constraints = ON")
    insert_events(bench, "seven", 8)
    bench.connection.execute("PRAGMA ignore_check_constraints = OFF")
    fold_up_to(bench, 1)
    assert indexed(bench) == {(1, 0)}


def test_with_the_last_event_of_a_block_its_entry_in_the_index_is_deleted_and_no_other(bench: Bench) -> None:
    insert_events(bench, 8, 15, 16, 7, 0, 0, 0, 0, 8)
    fold_up_to(bench, 8)
    bench.insert("event_blocks", [{"jobs": 9, "events": 0}])  # of no event
    others = {(0, 0), (2, 0), (1, 1), (9, 0)}
    assert indexed(bench) == {(1, 0)} | others
    bench.connection.execute("DELETE FROM holdfast_events WHERE id = 0")
    assert indexed(bench) == {(1, 0)} | others, "it has another event of these jobs"
    bench.connection.execute("DELETE FROM holdfast_events WHERE id = 1")
    assert indexed(bench) == others


def test_the_events_of_a_job_are_each_found_once_by_the_view(bench: Bench) -> None:
    jobs = [None, 7, 8, 9, 8, 15, 16, 8, 8, 9, 8, 7]
    insert_events(bench, *jobs)
    for job in (7, 8, 9, 15, 16, 17):
        bench.connection.execute("INSERT INTO holdfast_jobs (id, history) VALUES (?, 0)", (job,))
    for cursor in range(len(jobs)):
        fold_up_to(bench, cursor)
        for job in (7, 8, 9, 15, 16, 17):
            found = rows(bench, f"SELECT event_id FROM holdfast_events_by_job WHERE job_id = {job} ORDER BY 1")  # noqa: S608
            assert [one["event_id"] for one in found] == [id for id, its in enumerate(jobs) if its == job]
