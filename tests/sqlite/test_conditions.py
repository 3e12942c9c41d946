"""Every condition of the statements that claim, settle, recover, promote and fold.

Each statement runs on rows in all kinds of states, and must change or find those that a condition in Python allows,
and no others. `faults/mutation.py` removes and inverts the conditions one by one: each time a test here must fail.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from support.statement_bench import ANY, BOOT, CREATED, LEASE, NOW, PAUSED, Bench, Row, some_jobs


@pytest.fixture
def crowd(bench: Bench) -> list[Row]:
    bench.insert("jobs", some_jobs(Random(1), 200))
    return bench.jobs()


def expired(job: Row) -> bool:
    return job["status"] == "running" and (job["lease"] or 0) <= BOOT


def due(job: Row) -> bool:
    return bool(job["status"] == "scheduled" and job["run_at"] <= NOW)


def spent(job: Row) -> bool:
    return bool(job["attempt"] >= job["max_attempts"])


def code(job: Row) -> str:
    return "TIMEOUT:VISIBILITY" if job["task"] is None else "TIMEOUT:LEASE"


SWEEPS: dict[str, tuple[Row, Callable[[Row], bool], Callable[[Row], Row]]] = {
    "promote": ({}, due, lambda _: {"status": "ready"}),
    "recover": (
        {},
        lambda job: expired(job) and not spent(job),
        lambda job: {"status": "ready", "error_code": code(job)},
    ),
    "recover_spent": (
        {},
        lambda job: expired(job) and spent(job),
        lambda job: {"status": "failed", "error_code": code(job)},
    ),
    "return_all": (
        {"worker": "w1"},
        lambda job: job["status"] == "running" and job["worker"] == "w1",
        lambda job: {"status": "ready", "max_attempts": job["max_attempts"] + 1},
    ),
    "recover_lost": (
        {"worker": "w1"},
        lambda job: job["status"] == "running" and job["worker"] == "w1" and not spent(job),
        lambda _: {"status": "ready"},
    ),
    "recover_lost_spent": (
        {"worker": "w1"},
        lambda job: job["status"] == "running" and job["worker"] == "w1" and spent(job),
        lambda _: {"status": "failed"},
    ),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_moves_the_jobs_that_it_is_for_and_no_others(bench: Bench, crowd: list[Row], name: str) -> None:
    given, wanted, becomes = SWEEPS[name]
    changed = bench.changed(name, {"actor": "test", "now": NOW, "boot_now": BOOT, "limit": ANY} | given)
    assert changed.keys() == {job["id"] for job in crowd if wanted(job)} != set()
    for job in crowd:
        if job["id"] in changed:
            assert becomes(job).items() <= changed[job["id"]].items()


@pytest.mark.parametrize("longest", [ANY, 1])
def test_a_lease_is_renewed_for_a_live_worker_once_by_the_timeout_of_the_job(bench: Bench, longest: int) -> None:
    jobs = some_jobs(Random(1), 400)
    for number, job in enumerate(jobs):
        lease = None if job["lease"] is None else job["lease"] - (0, 4, 5)[number % 3]
        job |= {"lease": lease, "heartbeat_at": (None, NOW)[number % 2]}
    bench.insert("jobs", jobs)
    before = bench.jobs()
    bench.returned("renew_for", {"worker": "w1", "boot_now": BOOT, "lease": LEASE, "longest": longest})
    renewed = {row["id"]: row["lease"] for row, old in zip(bench.jobs(), before, strict=True) if row != old}

    def new_lease(job: Row) -> int | None:
        if job["timeout"] is None:
            return BOOT + LEASE
        until = (job["lease"] or 0) + min(job["timeout"], longest)
        return until if until > BOOT and job["heartbeat_at"] is not None else None

    wanted = [job for job in before if expired(job) and job["worker"] == "w1"]
    leases = {job["id"]: new_lease(job) for job in wanted}
    assert renewed == {id: lease for id, lease in leases.items() if lease is not None}
    assert 0 < len(renewed) < len(wanted)


def test_workers_with_expired_leases(bench: Bench) -> None:
    for jobs in populations():
        with bench.undone():
            bench.insert("jobs", jobs)
            expected = {job["worker"] for job in bench.jobs() if expired(job) and job["worker"] is not None}
            assert {row[0] for row in bench.returned("workers_with_expired_leases", {"boot_now": BOOT})} == expected


# --- claiming ---


def is_ready(job: Row, queue: str, task: str | None) -> bool:
    return bool(job["status"] == "ready" and job["queue"] == queue != PAUSED and job["task"] == task)


@pytest.mark.parametrize("queue", ["a", "b", PAUSED, "never"])
def test_a_claim_takes_the_ready_jobs_of_its_queue_and_task(bench: Bench, crowd: list[Row], queue: str) -> None:
    claimed = bench.changed("claim_messages", ("w", LEASE, NOW, queue, ANY))
    assert claimed.keys() == {job["id"] for job in crowd if is_ready(job, queue, None)}
    for task in ("one", "two", "never"):
        given = {"worker": "w", "lease": LEASE, "now": NOW, "limit": ANY, "queue": queue, "task": task}
        assert bench.changed("claim_task", given).keys() == {job["id"] for job in crowd if is_ready(job, queue, task)}


def test_a_claim_of_several_pairs_takes_the_ready_jobs_of_each(bench: Bench, crowd: list[Row]) -> None:
    pairs = [("a", "one"), ("b", "two"), (PAUSED, "one")]
    given = {"worker": "w", "lease": LEASE, "now": NOW, "limit": ANY, "each": ANY, "pairs": json.dumps(pairs)}
    wanted = {job["id"] for job in crowd if any(is_ready(job, *pair) for pair in pairs)}
    assert bench.changed("claim_tasks", given).keys() == wanted != set()


def test_a_claim_of_one_job_takes_it_if_it_is_ready(bench: Bench, crowd: list[Row]) -> None:
    for job in crowd:
        given = {"worker": "w", "lease": LEASE, "now": NOW, "id": job["id"]}
        wanted = is_ready(job, job["queue"], job["task"]) and job["task"] is not None
        assert set(bench.changed("claim_one", given)) == ({job["id"]} if wanted else set()), job


CLAIM = {"worker": "w", "lease": LEASE, "now": NOW, "boot_now": BOOT, "limit": ANY, "each": ANY, "scanned": ANY}
ONE_PAIR = CLAIM | {"pairs": json.dumps([("a", "one", 9)]), "skip": "[]", "queue": "a", "task": "one"}
BY_INDEX: dict[str, tuple[Row, dict[str, Any] | tuple[Any, ...]]] = {
    "claim_messages": ({"status": "ready", "task": None}, ("w", LEASE, NOW, "a", 1)),
    "claim_next_message": ({"status": "ready", "task": None}, ("w", LEASE, NOW, "a", BOOT)),
    "claim_task": ({"status": "ready"}, ONE_PAIR),
    "claim_tasks": ({"status": "ready"}, ONE_PAIR),
    "claim_readable": ({"status": "ready"}, ONE_PAIR),
    "promote": ({"status": "scheduled"}, ONE_PAIR),
    "recover": ({"status": "running"}, ONE_PAIR),
    "recover_spent": ({"status": "running", "attempt": 2}, ONE_PAIR),
    "expire": ({"status": "ready", "expires_at": NOW}, ONE_PAIR),
    "time_out_external": ({"status": "blocked", "external": 1, "expires_at": NOW}, ONE_PAIR),
}


@pytest.mark.parametrize("name", BY_INDEX)
def test_a_job_that_has_ended_takes_no_place_of_another_one(bench: Bench, name: str) -> None:
    row, given = BY_INDEX[name]
    few = {"limit": 1, "each": 1, "scanned": 1}
    job = {"queue": "a", "task": "one", "attempt": 1, "max_attempts": 2, "created_at": CREATED, "run_at": NOW} | row
    bench.insert("jobs", [job | {"status": "succeeded", "run_at": NOW - 1, "priority": 5}, job])
    ended, other = bench.jobs()
    changed = bench.changed(name, given | few if isinstance(given, dict) else given)
    assert changed.keys() == {other["id"]} and ended["status"] == "succeeded"


@pytest.mark.parametrize("name", BY_INDEX)
def test_a_job_that_has_ended_is_not_moved_if_a_damaged_index_still_has_it(bench: Bench, name: str) -> None:
    row, given = BY_INDEX[name]
    job = {"queue": "a", "task": "one", "attempt": 1, "max_attempts": 2, "created_at": CREATED, "run_at": NOW} | row
    bench.insert("jobs", [job])
    assert len(bench.changed(name, given)) == 1
    bench.end_behind_indexes(job["status"])
    problems = [text for (text,) in bench.connection.execute("PRAGMA integrity_check")]
    assert any("index holdfast_jobs_" in problem for problem in problems), problems
    assert bench.changed(name, given) == {}


def populations() -> Iterator[list[Row]]:
    """None, or a few jobs: whether there is one of a kind must be seen by itself."""
    random = Random(2)
    yield []
    for number in range(150):
        yield some_jobs(random, 1 + number % 3)
    for number in range(40):
        yield some_jobs(random, 1 + number % 3, status="ready", task=None)
    for _ in range(80):
        yield [*some_jobs(random, 1, status="ready", task=None, queue="a", chain_id=None), *some_jobs(random, 1)]
    for status in ("scheduled", "running", "blocked"):
        for _ in range(40):
            yield some_jobs(random, 1, status=status)


def test_the_next_message_is_claimed_unless_there_is_something_to_sweep(bench: Bench) -> None:
    took = 0
    for jobs, queue in itertools.product(populations(), ["a", PAUSED]):
        with bench.undone():
            bench.insert("jobs", jobs)
            found = bench.jobs()
            ready = [job for job in found if is_ready(job, queue, None)]
            best = sorted(ready, key=lambda job: (-job["priority"], job["id"]))[:1]
            wanted = [] if any(due(job) or expired(job) for job in found) else [job["id"] for job in best]
            assert list(bench.changed("claim_next_message", ("w", LEASE, NOW, queue, BOOT))) == wanted
            took += len(wanted)
    assert took > 20


def test_what_there_is_to_sweep_is_seen_before_a_claim(bench: Bench) -> None:
    for jobs, ended in itertools.product(populations(), [False, True]):
        with bench.undone():
            bench.insert("jobs", jobs)
            if ended:
                bench.insert("endings", [{"chain_id": 1}])
            found = bench.jobs()
            is_due, has_expired = any(map(due, found)), any(map(expired, found))
            waiting = [job for job in found if job["status"] in ("blocked", "scheduled", "ready")]
            timed_out = any((job["expires_at"] or ANY**4) <= NOW for job in waiting)
            for queue in ("a", "b"):
                has_message = any(
                    job["status"] == "ready" and job["queue"] == queue and job["task"] is None for job in found
                )
                (peeked,) = bench.returned("peek_messages", (NOW, BOOT, queue))
                assert peeked == (is_due, has_expired, has_message)
            first = (is_due + 2 * (ended or timed_out), has_expired)
            times = {"now": NOW, "boot_now": BOOT}
            assert bench.returned("ready_pairs", times | {"queue": "", "task": None, "most": 50})[0][:2] == first
            assert bench.returned("ready_pairs_in", times | {"queues": '["a"]'})[0][:2] == first
            soonest = (
                min((job["run_at"] for job in found if job["status"] == "scheduled"), default=None),
                min((job["expires_at"] for job in waiting if job["expires_at"]), default=None),
                min((job["lease"] or 0 for job in found if job["status"] == "running"), default=None),
            )
            assert bench.returned("next_due", ()) == [soonest]


def steps(pairs: set[tuple[str, str]]) -> list[tuple[str, str, bool]]:
    """The pairs in order. Each queue but the first begins with a step that has no task."""
    first = min((queue for queue, _ in pairs), default="")
    found = {pair for pair in pairs if pair[1]} | {(queue, "") for queue, _ in pairs if queue != first}
    return [(*pair, pair[0] == PAUSED) for pair in sorted(found)]


def test_the_pairs_of_queue_and_task_with_ready_jobs_are_found(bench: Bench) -> None:
    times = {"now": NOW, "boot_now": BOOT}
    for jobs in populations():
        with bench.undone():
            bench.insert("jobs", jobs)
            ready = {(job["queue"], job["task"] or "") for job in bench.jobs() if job["status"] == "ready"}
            found = bench.returned("ready_pairs", times | {"queue": "", "task": None, "most": 50})
            assert found[1:] == steps(ready)
            pairs = [(*pair, pair[0] == PAUSED) for pair in sorted(ready) if pair[1]]
            found = bench.returned("ready_pairs_in", times | {"queues": '["a", "paused"]'})
            assert sorted(found[1:]) == [pair for pair in pairs if pair[0] != "b"]


def test_the_pairs_after_a_pair_are_found_and_not_more_than_wanted(bench: Bench) -> None:
    queues, tasks = ["a", "b", "c"], [None, "one", "two", "x"]
    pairs = [(queue, task) for queue in queues for task in tasks]
    jobs = [{"queue": queue, "task": task, "status": "ready"} for queue, task in pairs]
    bench.insert("jobs", jobs)
    wanted = [(queue, task, 0) for queue, task in pairs if task]
    times = {"now": NOW, "boot_now": BOOT}
    for queue, task, _ in wanted:
        found = bench.returned("ready_pairs", times | {"queue": queue, "task": task, "most": 50})
        after = {pair[:2] for pair in wanted if pair[:2] > (queue, task)} | {(queue, "")}
        assert found[1:] == steps(after)
    for most in range(1, 12):
        found = bench.returned("ready_pairs", times | {"queue": "", "task": None, "most": most})
        pairs_found = [pair for pair in found[1:] if pair[1]]
        assert pairs_found == wanted[: len(pairs_found)]
        assert len(found) == min(most + 1, 1 + len(wanted) + len(queues) - 1)


# --- settling ---


def holds(job: Row, attempt: int, queue: str | None) -> bool:
    """Whether this attempt holds the job, and may settle it if it is a message of the queue."""
    is_its_message = queue is None or (job["queue"] == queue and job["task"] is None)
    return bool(job["status"] == "running" and job["attempt"] == attempt and is_its_message)


def keeps(job: Row) -> bool:
    """Whether its row stays when it succeeds."""
    return bool(job["history"] or job["awaited"] or job["chain_id"] is not None or job["batch_id"] is not None)


def claims(crowd: list[Row]) -> Iterator[tuple[Row, int, str | None]]:
    """Each job with its attempt, the one before it, its queue and another one."""
    for number, job in enumerate(crowd):
        yield job, job["attempt"], None
        yield job, job["attempt"] - 1 + 2 * (number % 2), None
        yield job, job["attempt"], job["queue"]
        yield job, job["attempt"], "b" if job["queue"] == "a" else "a"


SETTLEMENTS = {
    "retry": lambda job: not spent(job),
    "release": lambda job: not spent(job),
    "fail": lambda job: True,
    "snooze": lambda job: True,
    "stop": lambda job: True,
    "interrupt": None,  # not by queue
    "give_back": None,
}


@pytest.mark.parametrize("name", SETTLEMENTS)
def test_an_attempt_is_settled_only_while_it_holds_the_job(bench: Bench, crowd: list[Row], name: str) -> None:
    may, settled = SETTLEMENTS[name], 0
    given = {
        "run_at": NOW,
        "clock": NOW,
        "now": NOW,
        "started_at": None,
        "reason": None,
        "progress": None,
        "progress_text": None,
    }
    given |= {"error_code": "E", "error_detail": None, "fingerprint": None}
    for job, attempt, queue in claims(crowd):
        if may is None and queue is not None:
            continue
        wanted = holds(job, attempt, queue) and (may is None or may(job))
        changed = bench.changed(name, given | {"id": job["id"], "attempt": attempt, "queue": queue})
        assert set(changed) == ({job["id"]} if wanted else set()), (job, attempt, queue)
        settled += wanted
    assert settled > 20


@pytest.mark.parametrize("name", ["retry", "release", "snooze"])
def test_a_job_is_scheduled_if_it_is_due_later_and_ready_otherwise(bench: Bench, crowd: list[Row], name: str) -> None:
    job = next(job for job in crowd if job["status"] == "running" and not spent(job))
    given = {
        "id": job["id"],
        "attempt": job["attempt"],
        "queue": None,
        "now": NOW,
        "started_at": None,
        "progress": None,
    }
    given |= {"error_code": "E", "error_detail": None, "fingerprint": None, "clock": NOW, "progress_text": None}
    for late, status in ((-1, "ready"), (0, "ready"), (1, "scheduled")):
        (changed,) = bench.changed(name, given | {"run_at": NOW + late}).values()
        assert changed["status"] == status


def test_an_attempt_succeeds_only_while_it_holds_the_job(bench: Bench, crowd: list[Row]) -> None:
    done, gone, ids = 0, 0, {job["id"] for job in crowd}
    for job, attempt, queue in claims(crowd):
        wanted = holds(job, attempt, queue)
        only = {job["id"]} if wanted and keeps(job) else set()
        assert set(bench.changed("succeed", (NOW, None, job["id"], attempt, queue, None, None, None))) == only, job
        if queue is None:
            assert set(bench.changed("succeed_many", (job["id"], attempt, None, NOW, NOW))) == only, job
            rows = json.dumps([[job["id"], attempt, None, NOW, NOW]])
            assert set(bench.changed("continue_many", (rows,))) == ({job["id"]} if wanted else set()), job
        with bench.undone():
            bench.returned("succeed_without_history", (job["id"], attempt, queue))
            left = {row[0] for row in bench.connection.execute("SELECT id FROM holdfast_jobs")}
        missing = ids - left
        assert missing == ({job["id"]} if wanted and not keeps(job) else set()), job
        done, gone = done + len(only), gone + len(missing)
    assert done > 20 and gone > 5


def test_what_was_not_settled_is_found(bench: Bench, crowd: list[Row]) -> None:
    settled = {job["id"] for job in crowd if job["status"] == "succeeded" and job["transition"] == "succeeded"}
    ids = [job["id"] for job in crowd]
    for later in (0, 1):
        rows = [(job["id"], job["attempt"] + later) for job in crowd]
        found = [row[0] for row in bench.returned("unsettled", (json.dumps(rows),))]
        assert found == [id for id in ids if later or id not in settled]
    assert settled


def test_a_lease_is_renewed_only_by_the_attempt_that_holds_the_job(bench: Bench, crowd: list[Row]) -> None:
    for job, attempt, queue in claims(crowd):
        row, wanted = json.dumps([[job["id"], attempt, queue, None, None, None]]), holds(job, attempt, queue)
        assert [one[0] for one in bench.returned("held", (row,))] == [job["id"]] * wanted
        with bench.undone():
            assert [one[0] for one in bench.returned("renew", (row, LEASE, NOW))] == [job["id"]] * wanted
            renewed = {one["id"] for one in bench.jobs(f"lease = {LEASE}")}
            assert renewed == ({job["id"]} if wanted else set())


# --- folding ---


def some_events(random: Random, count: int) -> list[Row]:
    return [
        {
            "id": number,
            "job_id": random.choice([None, 1, 2, 9000]),
            "at": NOW + random.choice([0, 1, 60_000_000]),
            "event": random.choice(["enqueued", "succeeded", "removed", "failed"]),
            "queue": random.choice([None, "a", "b"]),
            "task": random.choice([None, "one"]),
            "old_status": random.choice([None, "running"]),
            "new_status": random.choice([None, "succeeded", "cancelled", "ready"]),
            "error_code": random.choice([None, "E"]),
        }
        for number in range(1, count + 1)
    ]


CURSORS = [(0, 40), (0, 60), (10, 40), (20, 20), (39, 40), (40, 60)]


def test_the_events_between_two_cursors_are_folded(bench: Bench) -> None:
    events = some_events(Random(3), 60)
    bench.insert("events", events)
    for after, upto in CURSORS:
        given = {"after": after, "upto": upto, "ids": 8192}
        between = [one for one in events if after < one["id"] <= upto]
        of_queues = [one for one in between if one["queue"] is not None]
        assert sum(row[7] for row in bench.returned("event_groups", given)) == len(of_queues)
        groups = {(row[1], row[3]) for row in bench.returned("event_groups", given)}
        assert groups == {(one["queue"], one["event"]) for one in of_queues}
        failures = [(one["queue"], one["job_id"] or 0) for one in of_queues if one["error_code"]]
        assert [(row[1], row[5]) for row in bench.returned("event_failures", given)] == failures
        last = min(after + 5, 60)
        assert bench.returned("last_event_to_fold", {"after": after, "limit": 5}) == [(last, last - after)]
        assert sorted(bench.returned("event_zones", given)) == zones_of(between)
    assert bench.returned("last_event_to_fold", {"after": 60, "limit": 5}) == [(60, 0)]


def zones_of(events: list[Row]) -> list[tuple[Any, ...]]:
    found = []
    for zone in (0, 1):
        matter = [
            one
            for one in events
            if one["job_id"] is not None
            and one["job_id"] // 8192 == zone
            and (one["event"] == "enqueued" or one["new_status"] in ("succeeded", "cancelled"))
        ]
        times = [one["at"] for one in matter if one["event"] == "enqueued"]
        states = [one["new_status"] for one in matter]
        if matter:
            edges = min(times, default=None), max(times, default=None)
            found.append((zone, *edges, int("succeeded" in states), int("cancelled" in states)))
    return found


def test_events_of_each_kind_alone_make_the_zone_that_they_should(bench: Bench) -> None:
    for number, event in enumerate(some_events(Random(4), 200)):
        with bench.undone():
            bench.insert("events", [event | {"id": 1}])
            given = {"after": 0, "upto": 1, "ids": 8192}
            assert bench.returned("event_zones", given) == zones_of([event]), number


def test_a_fold_is_stored_only_if_no_other_process_has_moved_the_cursor(bench: Bench) -> None:
    for after, moved in ((0, True), (3, False)):
        with bench.undone():
            bench.returned("move_fold", {"after": after, "upto": 5, "now": NOW})
            assert bench.returned("fold_position", ())[0][0] == (5 if moved else 0)


def test_only_empty_counts_and_zones_without_jobs_are_deleted(bench: Bench) -> None:
    bench.insert("counts", [{"queue": str(n), "task": "", "status": "ready", "n": n} for n in (-1, 0, 1)])
    bench.returned("delete_empty_counts", ())
    left = bench.connection.execute("SELECT n FROM holdfast_counts ORDER BY n").fetchall()
    assert [row[0] for row in left] == [-1, 1]
    bench.insert("zones", [{"zone": zone, "succeeded": 0, "cancelled": 0} for zone in (0, 1, 2, 3)])
    bench.returned("delete_empty_zones", {"ids": 8192})
    assert len(bench.returned("folded_zones", ())) == 4, "there is no job at all"
    bench.insert("jobs", [{"id": 2 * 8192}])
    bench.returned("delete_empty_zones", {"ids": 8192})
    assert [row[0] for row in bench.returned("folded_zones", ())] == [2, 3]


def test_leftover_events_are_deleted_once_they_are_folded(bench: Bench) -> None:
    events = some_events(Random(5), 60)
    bench.insert("events", events)
    bench.connection.execute("UPDATE holdfast_fold SET cursor = 40")
    newest = max(one["id"] for one in events if one["event"] == "removed" and one["job_id"] and one["id"] <= 40)
    for most, upto in ((60, 40), (newest, newest - 1)):  # not the newest event, even if it is folded
        with bench.undone():
            bench.connection.execute("DROP TRIGGER holdfast_events_keep_newest")
            bench.connection.execute("DELETE FROM holdfast_events WHERE id > ?", (most,))
            removed = [one for one in events if one["event"] == "removed" and one["job_id"] is not None]
            found = [row[0] for row in bench.returned("removed_jobs", {"limit": ANY})]
            assert found == [one["job_id"] for one in removed if one["id"] <= upto] != []
    with bench.undone():
        bench.returned("delete_events_of_removed", {"jobs": "[1]"})
        left = {row[0] for row in bench.connection.execute("SELECT id FROM holdfast_events")}
        assert left == {one["id"] for one in events if one["job_id"] != 1 or one["id"] > 40}


# --- versions, waiting, and what an attempt keeps ---


def test_a_claim_of_readable_jobs_leaves_newer_versions_and_those_to_skip(bench: Bench) -> None:
    jobs = some_jobs(Random(6), 200, status="ready", chain_id=None)
    bench.insert("jobs", [job | {"version": number % 4} for number, job in enumerate(jobs)])
    bench.insert("jobs", [job | {"version": 1} for job in some_jobs(Random(7), 60)])
    crowd = bench.jobs()
    pairs = [("a", "one", 1), ("b", "two", 2), (PAUSED, "one", 3)]
    skip = [job["id"] for job in crowd[::5]]
    given = {"worker": "w", "lease": LEASE, "now": NOW, "limit": ANY, "each": ANY, "scanned": ANY}
    given |= {"pairs": json.dumps(pairs), "skip": json.dumps(skip)}
    wanted = {
        job["id"]
        for job in crowd
        for queue, task, version in pairs
        if is_ready(job, queue, task) and job["version"] <= version and job["id"] not in skip
    }
    assert bench.changed("claim_readable", given).keys() == wanted != set()


@pytest.mark.parametrize("status", ["ready", "scheduled"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_ready_job_with_a_version_is_seen_before_a_claim(bench: Bench, status: str, version: int) -> None:
    bench.insert("jobs", some_jobs(Random(9), 20, version=0))
    bench.insert("jobs", some_jobs(Random(9), 1, version=version, status=status))
    times = {"now": NOW, "boot_now": BOOT}
    expected = int(version > 0 and status == "ready")
    assert bench.returned("ready_pairs", times | {"queue": "", "task": None, "most": 50})[0][2] == expected
    assert bench.returned("ready_pairs_in", times | {"queues": '["a"]'})[0][2] == expected


def test_the_newest_version_of_the_ready_jobs_of_a_pair(bench: Bench) -> None:
    jobs = some_jobs(Random(8), 80)
    bench.insert("jobs", [job | {"version": number % 4} for number, job in enumerate(jobs)])
    pairs = [(queue, task) for queue in ("a", "b", "never") for task in ("one", "two")]
    crowd, seen = bench.jobs(), set()
    for most in range(5):
        with bench.undone():
            bench.connection.execute("UPDATE holdfast_jobs SET version = 0 WHERE version > ?", (most,))
            found = [row[0] for row in bench.returned("newest_versions", {"pairs": json.dumps(pairs)})]
        versions = [
            [
                job["version"] if job["version"] <= most else 0
                for job in crowd
                if job["status"] == "ready" and (job["queue"], job["task"]) == pair
            ]
            for pair in pairs
        ]
        assert found == [max((one for one in each if one > 0), default=None) for each in versions]
        seen |= set(found)
    assert seen == {None, 1, 2, 3}


def test_a_payload_that_does_not_fit_is_returned_while_it_is_kept_for_newer_code(bench: Bench) -> None:
    crowd, keep, returned = some_jobs(Random(9), 200), 50, 0
    since = [None, NOW - keep - 1, NOW - keep, NOW - keep + 1]
    bench.insert("jobs", [job | {"unfit_since": since[number % 4]} for number, job in enumerate(crowd)])
    for job in bench.jobs():
        for attempt in (job["attempt"] - 1, job["attempt"], job["attempt"] + 1):
            given = {"id": job["id"], "attempt": attempt, "clock": NOW, "now": NOW, "keep": keep, "run_at": NOW}
            wanted = holds(job, attempt, None) and (job["unfit_since"] is None or job["unfit_since"] > NOW - keep)
            changed = bench.changed("return_unfit", given)
            assert set(changed) == ({job["id"]} if wanted else set()), (job, attempt)
            for late, status, run_at in ((-1, "ready", job["run_at"]), (1, "scheduled", NOW + 1)) if wanted else ():
                (after,) = bench.changed("return_unfit", given | {"run_at": NOW + late}).values()
                assert (after["status"], after["run_at"]) == (status, run_at)
            returned += wanted
    assert returned > 10


def test_an_attempt_saves_its_state_only_while_it_holds_the_job(bench: Bench, crowd: list[Row]) -> None:
    for job in crowd:
        for attempt in (job["attempt"] - 1, job["attempt"], job["attempt"] + 1):
            with bench.undone():
                bench.returned("save_state", ('"mine"', job["id"], attempt))
                saved = {one["id"] for one in bench.jobs("state IS NOT NULL")}
                assert saved == ({job["id"]} if holds(job, attempt, None) else set())


ENDED = ("succeeded", "failed", "cancelled")


def test_what_waiting_threads_wait_for_is_found(bench: Bench) -> None:
    random, seen = Random(10), set[str]()
    for number, done in ((1, None), (2, NOW), (3, None)):
        bench.insert("batches", [{"id": number, "created_at": NOW, "done_at": done}])
    for jobs in populations():
        with bench.undone():
            for number, job in enumerate(jobs):  # of a chain, only the last job counts
                chain = random.choice([None, 900])
                bench.insert("jobs", [job | {"id": 901 + number, "chain_id": chain, "chain_index": number}])
            found = bench.jobs()
            status = {job["id"]: job["status"] for job in found}
            last = {job["chain_id"]: job["id"] for job in found if job["chain_id"] is not None}
            given = {
                "queues": ["a", "b", PAUSED],
                "jobs": [901, 902, 5],
                "chains": [900, 901, 5],
                "batches": [1, 2, 4],
            }
            rows = bench.returned("awaited", {"most": 2} | {name: json.dumps(value) for name, value in given.items()})
            expected: list[Any] = [
                ("due", min((job["run_at"] for job in found if job["status"] == "scheduled"), default=None), 0),
                ("lease", min((job["lease"] or 0 for job in found if job["status"] == "running"), default=None), 0),
            ]
            for queue in ("a", "b"):
                messages = sum(is_ready(job, queue, None) for job in found)
                expected += [("queue", queue, min(2, messages))] if messages else []
            expected += [("job", id, 1) for id in (901, 902, 5) if status.get(id, "failed") in ENDED]
            expected += [("chain", id, 1) for id in (900, 901, 5) if status.get(last.get(id, id), "failed") in ENDED]
            expected += [("batch", 2, 1), ("batch", 4, 1)]
            assert rows == expected
            seen |= {row[0] for row in rows} | {f"{row[0]} {row[2]}" for row in rows}
    assert seen >= {"queue 1", "queue 2", "job 1", "chain 1"}
