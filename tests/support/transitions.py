"""Short ways to one transition of the store, for tests that look at that one alone; and to folded statistics."""

from collections.abc import Sequence

from holdfast import Holdfast
from holdfast.failure import Failure
from holdfast.model.job import Claimed, ClaimRequest, Lease, LeaseRenewal, Settlement, Sweep
from holdfast.store.protocol import Store


def claim_tasks(
    store: Store, queues: Sequence[str] | None, tasks: Sequence[str], limit: int, lease: int, worker: str
) -> list[Claimed]:
    each = None if queues is None else [(queue, limit) for queue in queues]
    return store.jobs.settle_and_claim((), [ClaimRequest(tasks, limit, lease, worker, each)]).claimed


def claim_one(store: Store, job_id: int, lease: int, worker: str) -> Claimed | None:
    found = store.jobs.settle_and_claim((), [ClaimRequest((), 1, lease, worker, job_id=job_id)]).claimed
    return found[0] if found else None


def succeed(store: Store, lease: Lease, result: str | None = None) -> bool:
    return store.jobs.settle(Settlement(lease, "succeed", None, store.clock.now(), result=result))


def retry(store: Store, lease: Lease, delay: int, failure: Failure) -> bool:
    return store.jobs.settle(Settlement(lease, "retry", None, store.clock.now(), delay=delay, failure=failure))


def fail(store: Store, lease: Lease, failure: Failure) -> bool:
    return store.jobs.settle(Settlement(lease, "fail", None, store.clock.now(), failure=failure))


def stop(store: Store, lease: Lease, reason: str) -> bool:
    return store.jobs.settle(Settlement(lease, "stop", None, store.clock.now(), reason=reason))


def snooze(store: Store, lease: Lease, delay: int) -> bool:
    return store.jobs.settle(Settlement(lease, "snooze", None, store.clock.now(), delay=delay))


def release(store: Store, lease: Lease, delay: int) -> bool:
    return store.jobs.settle(Settlement(lease, "release", None, store.clock.now(), delay=delay))


def extend(store: Store, lease: Lease, duration: int) -> bool:
    return bool(store.jobs.renew([LeaseRenewal(lease)], duration))


def promote(store: Store) -> int:
    return store.jobs.sweep(Sweep.DUE)


def recover(store: Store) -> int:
    return store.jobs.sweep(Sweep.WORKERS | Sweep.LEASES)


def recover_lost(store: Store) -> int:
    return store.jobs.sweep(Sweep.WORKERS)


def resolve(store: Store) -> int:
    return store.jobs.sweep(Sweep.ENDINGS)


def fold_all(app: Holdfast) -> None:
    """Fold all events, and delete those of deleted jobs."""
    while app.store.statistics.fold():
        pass
