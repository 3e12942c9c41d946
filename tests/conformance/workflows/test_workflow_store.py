"""The protocol WorkflowStore: what each method reads."""

from typing import Any

from holdfast import Context, Holdfast, Then
from holdfast.clock import SECOND
from support.flow import Flow
from support.running_worker import drain
from support.transitions import claim_tasks

# --- chains ---


def test_a_part_of_a_long_chain_has_its_first_and_its_last_job(app: Holdfast) -> None:
    @app.task
    def walk(left: int) -> Any:
        return Then(walk, left - 1) if left else None

    root = walk.enqueue(9).id
    drain(app)
    chain = app.store.workflows.chain
    assert [one.chain_index for one in chain(root)] == list(range(10))
    assert [one.chain_index for one in chain(root, last_only=True)] == [9]
    assert [one.chain_index for one in chain(root, near=4, each_side=1)] == [0, 3, 4, 5, 9]
    assert [one.chain_index for one in chain(root, near=0, each_side=1)] == [0, 1, 9]
    assert [one.chain_index for one in chain(root, near=9)] == [0, 9]
    assert chain(99) == chain(99, last_only=True) == chain(99, near=0) == []


def test_a_dry_run_of_a_deletion_tells_all_that_it_finds(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    b = flow.job("b", a)
    flow.job("c", b)
    alone = app.store.workflows.delete_chain(a.id, False, "me", dry_run=True)
    assert (alone.ids, alone.waiting, alone.running) == ((a.id,), (b.id,), ())
    assert app.store.workflows.delete_chain(a.id, False, "me").ids == ()
    assert app.store.workflows.delete_chain(a.id, True, "me", dry_run=True).ids == (1, 2, 3)
    assert app.jobs.count() == 3, "nothing was deleted"
    claim_tasks(app.store, None, [flow.step.name], 1, SECOND, "worker-1")
    assert app.store.workflows.delete_chain(a.id, True, "me", dry_run=True).running == (a.id,)


# --- blockers ---


def test_blockers_are_read_in_their_order_or_the_most_urgent_first(app: Holdfast, flow: Flow) -> None:
    fine, bad, later = flow.job("fine"), flow.failed_job(), flow.job("later")
    job = flow.job("job", fine, bad, later, fine)
    assert app.jobs.complete(fine.id)
    in_order = app.store.workflows.blockers(job.id)
    assert [one.id for one in in_order.found] == [fine.id, bad.id, later.id, fine.id], "as it was enqueued"
    urgent = app.store.workflows.blockers(job.id, 2, urgent_first=True)
    assert [one.id for one in urgent.found] == [bad.id, later.id]
    assert (urgent.total, urgent.holding) == (in_order.total, in_order.holding) == (3, 2)


def test_jobs_that_wait_for_a_chain_are_counted_beyond_the_limit(app: Holdfast, flow: Flow) -> None:
    a = flow.job("a")
    ids = [flow.job("b", a).id for _ in range(5)]
    assert app.jobs.cancel(ids[0])
    some = app.store.workflows.waiting_for(a.id, 2)
    assert ([one.id for one in some.found], some.total) == (ids[1:3], 4)
    every = app.store.workflows.waiting_for(a.id, -1, include_finished=True)
    assert ([one.id for one in every.found], every.total) == (ids, 5)
    assert app.store.workflows.waiting_for(ids[0], 2).total == 0


# --- batches ---


def test_a_batch_is_found_by_its_callback(app: Holdfast, flow: Flow) -> None:
    @app.task
    def report(ctx: Context) -> int:
        return ctx.batch.id

    with app.batch(on_done=report) as batch:
        flow.step.using(batch=batch).enqueue("a")
    drain(app)
    assert batch.done_job_id is not None
    found = app.store.workflows.batch(callback=batch.done_job_id)
    assert found == app.store.workflows.batch(batch.id) and found is not None
    assert app.jobs.get(batch.done_job_id).result == batch.id
    assert app.store.workflows.batch(callback=1) is None
