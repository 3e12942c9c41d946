"""`app.check()`: the findings about orphaned rows, counts and restarts of the machine.

SQLite enforces foreign keys only on connections that ask for it, so plain SQL can leave orphaned rows behind.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.errors import StoreBusy
from holdfast.model.job import Claimed
from holdfast.model.worker import WorkerRecord
from holdfast.testing import FakeClock
from holdfast.upkeep.doctor.check import Finding
from support.doctor import finding_of, problems
from support.transitions import fold_all, succeed

Sql = Callable[..., list[Any]]
Claim = Callable[..., Claimed]


@pytest.fixture
def found(app: Holdfast) -> Callable[..., Finding]:
    """The finding with this code and severity."""
    return functools.partial(finding_of, app)


def delete_past_triggers(sql: Sql, *jobs: int) -> None:
    """Delete jobs without the trigger, and with foreign keys off, which is the default."""
    ((made,),) = sql("SELECT sql FROM sqlite_master WHERE name = 'holdfast_jobs_deleted'")
    sql("DROP TRIGGER holdfast_jobs_deleted")
    for job in jobs:
        sql("DELETE FROM holdfast_jobs WHERE id = ?", (job,))
    sql(made)


def test_events_that_wait_to_be_folded_are_no_orphans(app: Holdfast, sql: Sql, found: Any) -> None:
    app.queue("inbox").send_many([1, 2])
    sql("DELETE FROM holdfast_jobs WHERE id = 1")
    assert sql("SELECT count(*) FROM holdfast_events WHERE job_id = 1") == [(2,)]
    assert found("ORPHANED_ROWS", "ok") and found("COUNTS", "ok")
    assert not any("orphaned row" in sentence for sentence in app.check(repair=True).repaired)
    app.queue("inbox").send(3)  # the newest event of all stays until another comes
    fold_all(app)
    assert sql("SELECT count(*) FROM holdfast_events WHERE job_id = 1") == [(0,)]
    assert found("ORPHANED_ROWS", "ok") and found("COUNTS", "ok")
    assert app.observe.counts().by_status == {"ready": 2}


def test_orphaned_rows_are_found_and_deleted(app: Holdfast, sql: Sql, found: Any, claim: Claim) -> None:
    work = app.task(name="known")(lambda: None)
    first = work.using(tags=["a"]).enqueue()
    succeed(app.store, claim().lease)
    waits = work.using(after=first).enqueue()
    kept = work.using(tags=["b"]).enqueue()
    fold_all(app)
    delete_past_triggers(sql, first.id, waits.id)
    one = found("ORPHANED_ROWS", "warning")
    assert {name: some["jobs"] for name, some in one.detail.items()} == {
        "events": 2, "tags": 1, "blockers": 1,
    }  # fmt: skip
    assert one.fix is not None and one.fix.startswith("holdfast doctor --repair")
    assert found("FOREIGN_KEYS_BROKEN", "warning", deep=True).detail["tables"]["holdfast_tags"] == 1
    assert any("orphaned rows of deleted jobs" in sentence for sentence in app.check(repair=True).repaired)
    assert found("ORPHANED_ROWS", "ok")
    assert sql("SELECT job_id, tag FROM holdfast_tags") == [(kept.id, "b")]


def test_a_chain_without_its_root_can_be_deleted(app: Holdfast, sql: Sql, found: Any) -> None:
    sql("INSERT INTO holdfast_jobs (task, chain_id, chain_index) VALUES ('known', 77, 1), ('known', 77, 2)")
    one = found("CHAINS_WITHOUT_ROOT", "warning")
    assert one.detail == {"jobs": 1, "ids": (1,)} and "continue with 1 job (1)." in one.meaning
    assert one.fix is not None and one.fix.startswith("holdfast delete 1 --chain ")
    app.chains.delete(1)
    assert "CHAINS_WITHOUT_ROOT" not in problems(app)


def test_members_of_a_deleted_batch(app: Holdfast, sql: Sql, found: Any) -> None:
    sql("INSERT INTO holdfast_jobs (task, batch_id) VALUES ('known', 5), ('known', 6)")
    assert "batch 5 and 6." in found("MEMBERS_WITHOUT_BATCH", "warning").meaning


@pytest.mark.parametrize("tail", [0, 2], ids=["all folded", "with a tail"])
def test_counts_that_disagree_with_a_recount_are_recounted(app: Holdfast, sql: Sql, found: Any, tail: int) -> None:
    inbox = app.queue("inbox")
    inbox.send_many(range(3))
    for message in inbox.receive_many(3):
        message.ack()
    fold_all(app)
    inbox.send_many(range(tail))
    sql("UPDATE holdfast_counts SET n = 9")
    sql("INSERT INTO holdfast_counts VALUES ('ghost', 'gone', 'failed', -1)")
    one = found("COUNTS_WRONG", "warning")
    assert "succeeded messages in inbox (9 instead of 3)" in one.meaning
    assert "failed gone in ghost (-1 instead of 0)" in one.meaning
    assert one.detail["counts"] == [["ghost", "gone", "failed", -1, 0], ["inbox", "", "succeeded", 9, 3]]
    assert "Corrected 2 counts." in app.check(repair=True).repaired
    assert found("COUNTS", "ok")
    assert app.observe.counts().by_status == {"succeeded": 3} | ({"ready": tail} if tail else {})
    fold_all(app)
    assert sql("SELECT queue, status, n FROM holdfast_counts WHERE status <> 'ready'") == [("inbox", "succeeded", 3)]


def test_each_kind_of_repair_is_logged_with_actor_and_reason(app: Holdfast, sql: Sql, claim: Claim) -> None:
    work = app.task(name="known")(lambda: None)
    gone, kept = work.using(tags=["a"]).enqueue(), work.enqueue()
    claim(lease=0.001)
    app.clock.advance(60)  # type: ignore[attr-defined]
    delete_past_triggers(sql, gone.id)
    claim(lease=0.001)
    app.clock.advance(60)  # type: ignore[attr-defined]
    sql("INSERT INTO holdfast_counts VALUES ('ghost', 'gone', 'failed', 7)")
    sql("DROP INDEX holdfast_jobs_running")
    place = app.observe.last_event()
    app.check(repair=True, actor="kim", reason="a restored backup")
    found = [one for one in app.observe.events(after=place) if one.event == "repaired"]
    assert {one.detail["what"]: one.detail["count"] for one in found} == {
        "schema": 1, "leftovers": 3, "counts": 2, "running": 1,
    }  # fmt: skip
    assert {(one.actor, one.detail["reason"], one.job_id) for one in found} == {("kim", "a restored backup", None)}
    assert found[0].detail["names"] == ["holdfast_jobs_running"]
    app.check(repair=True)
    assert app.observe.last_events(1)[0].id == found[-1].id, "nothing was left to repair"
    assert app.jobs.get(kept.id).status == "ready"


def test_a_repair_that_fails_half_way_is_logged_with_what_it_has_done(
    app: Holdfast, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = app.task(name="known")(lambda: None)
    ids = [work.enqueue().id for _ in range(3)]
    delete_past_triggers(sql, *ids[:2])
    monkeypatch.setattr("holdfast.store.diagnose.LIMIT", 1)
    delete, left = app.store.file.delete_orphaned_rows, [1]

    def once() -> int:
        if left.pop():
            left.append(0)
            return delete()
        raise StoreBusy("another process writes")

    monkeypatch.setattr(app.store.file, "delete_orphaned_rows", once)
    with pytest.raises(StoreBusy):
        app.check(repair=True, actor="kim")
    (last,) = app.observe.last_events(1)
    assert (last.event, last.actor, last.detail) == ("repaired", "kim", {"what": "leftovers", "count": 1})


def test_deleted_jobs_with_orphaned_rows_are_counted(app: Holdfast, sql: Sql) -> None:
    work = app.task(name="known")(lambda: None)
    work.using(tags=["a"]).enqueue()
    assert app.observe.retention().left_behind == 0
    sql("DELETE FROM holdfast_jobs")  # foreign keys are off, as by default
    assert app.observe.retention().left_behind == 1


def test_a_database_of_an_earlier_boot_or_of_another_machine(app: Holdfast, clock: FakeClock, found: Any) -> None:
    clock.reboot()
    assert found("NOT_OPENED_SINCE_BOOT", "note")
    worker = WorkerRecord("0" * 16, os.getpid(), "host", None, ("known",), 10, 60 * SECOND, clock.now(), clock.now())
    app.store.workers.register(worker)
    assert "SQLite is for one machine" in found("ANOTHER_MACHINE", "error").meaning
    app.store.workers.unregister(worker.id)
