"""`holdfast delete`: delete jobs with their history, unless other jobs depend on them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from ...app.jobs import Filters
from ...app.workflows import Chain
from ...errors import HasWaitingJobs, JobNotFound, PartOfChain
from ...model.job import Counted
from ...supervisor import Holdfast
from ..bulk import CHANGED, Action, BulkOptions, BulkRun, check_selection, count
from ..options import AuditOptions, DatabaseOption, complete_jobs, example
from ..output import note, plural
from .job_actions import bulk_command

DELETE = Action("delete", "deleted", ("blocked", "scheduled", "ready", "succeeded", "failed", "cancelled"))
MAX_LISTED = 10  # ids in a message


@click.command(
    epilog=example(
        "holdfast delete 42 --db app.db",
        "holdfast delete 42 --chain --cascade --dry-run --db app.db",
        "holdfast delete --status cancelled --db app.db",
    )
)
@click.option("--chain", "whole_chain", is_flag=True, help="With IDs: delete the whole chain of each job.")
@click.option("--cascade", is_flag=True, help="With IDs: also delete the jobs that wait for them, recursively.")
@bulk_command(complete_jobs)
def delete(
    database: DatabaseOption,
    ids: tuple[int, ...],
    filters: Filters,
    options: BulkOptions,
    audit: AuditOptions,
    whole_chain: bool,
    cascade: bool,
) -> None:
    """Delete jobs with their history.

    These are not deleted, and a note says why: running jobs (cancel them first), jobs that unfinished jobs wait for
    (unless --cascade deletes those too), and single jobs of a chain (--chain deletes all of it). Filters delete a
    chain only if all its jobs match.
    """
    check_selection(DELETE, ids, filters)
    for name, given in (("--chain", whole_chain), ("--cascade", cascade)):
        if given and filters:
            raise click.UsageError(f"{name} requires ids: it cannot be combined with filters")
    with database.open() as app:
        run = BulkRun(app, DELETE, options)
        if ids:
            _DeleteByIds(app, run, options.dry_run, whole_chain, cascade, audit).delete(ids)
        else:
            run.apply_to_filters(functools.partial(app.jobs.delete, **audit), filters, _count_deletable(app))
    run.finish()


def _count_deletable(app: Holdfast) -> Callable[[Filters], Counted]:
    def count_deletable(wanted: Filters) -> Counted:
        deletable, matching = count(app, wanted, deletable=True), count(app, wanted)
        left = matching.count - deletable.count if matching.is_complete and deletable.is_complete else 0
        if left > 0:
            note(f"Skipping {plural(left, 'job')} that other jobs wait for, or whose chain matches only in part")
        return deletable

    return count_deletable


class _DeleteByIds:
    """Deletes one job after the other, and skips those that were deleted together with an earlier one."""

    def __init__(
        self, app: Holdfast, run: BulkRun, dry_run: bool, whole_chain: bool, cascade: bool, audit: AuditOptions
    ) -> None:
        self._app, self._run, self._dry_run = app, run, dry_run
        self._whole_chain, self._cascade, self._audit = whole_chain, cascade, audit
        self._deleted: set[int] = set()

    def delete(self, ids: Sequence[int]) -> None:
        for id in dict.fromkeys(ids):
            try:
                if id not in self._deleted:
                    self._delete(id)
            except JobNotFound as error:
                self._run.miss(id, error)

    def _delete(self, id: int) -> None:
        chain = self._app.chains.get(id)
        if chain.length > 1 and not self._whole_chain:
            self._refuse_part(id, chain)
            return
        plan = self._app.store.workflows.delete_chain(chain.id, self._cascade, "", dry_run=True)
        waiting = tuple(one for one in plan.waiting if one not in self._deleted)
        if waiting:
            self._refuse_awaited(id, waiting, chain)
        elif plan.running:
            others = _listed([one for one in plan.running if one != id])
            what = f"job {others}, which would be deleted with it, is running" if others else "it is running"
            self._refuse(id, "running", f"{what}; cancel that first", running=plan.running)
        elif self._dry_run or self._execute(id, chain):
            new = set(plan.ids) - self._deleted
            self._deleted |= new
            self._run.add(len(new))

    def _execute(self, id: int, chain: Chain) -> bool:
        """Delete it. Another process may have changed it since the plan was made."""
        act = self._app.chains.delete if self._whole_chain else self._app.jobs.delete
        try:
            done = act(id, cascade=self._cascade, **self._audit)
        except HasWaitingJobs as error:
            self._refuse_awaited(id, error.waiting, chain)
        except PartOfChain:
            self._refuse_part(id, chain)
        else:
            if not done:
                self._refuse(id, "changed", CHANGED)
            return done
        return False

    def _refuse_part(self, id: int, chain: Chain) -> None:
        why = f"it is one of {chain.length} jobs of chain {chain.id}; add --chain to delete the whole chain"
        self._refuse(id, "part_of_chain", why, chain_id=chain.id, length=chain.length)

    def _refuse_awaited(self, id: int, waiting: tuple[int, ...], chain: Chain) -> None:
        verb, what = "waits" if len(waiting) == 1 else "wait", "it" if chain.length == 1 else "its chain"
        why = f"{plural(len(waiting), 'job')} {verb} for {what} ({_listed(waiting)}); cancel them, or add --cascade"
        self._refuse(id, "awaited", why, waiting=waiting)

    def _refuse(self, id: int, reason: str, why: str, **detail: Any) -> None:
        self._run.refuse(id, self._app.jobs.get(id).status, why, reason=reason, **detail)


def _listed(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - MAX_LISTED:,} more" if len(ids) > MAX_LISTED else ""
    return f"{', '.join(map(str, ids[:MAX_LISTED]))}{more}"
