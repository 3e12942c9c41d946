"""`holdfast delete`: jobs with their history, unless others wait for them or they are part of a longer chain."""

import functools
from collections.abc import Sequence
from typing import Any

import click

from ...app.jobs import Filters
from ...errors import HasWaitingJobs, JobNotFound, PartOfChain
from ...model.job import Counted
from ...supervisor import Holdfast
from ..bulk import Action, BulkReport, Consent, by_filters, check_which, count
from ..options import AuditOptions, DatabaseOption, complete_jobs, example
from ..output import note, plural
from .operate import takes_jobs

DELETE = Action("delete", "deleted", ("blocked", "scheduled", "ready", "succeeded", "failed", "cancelled"))
MOST_NAMED = 10


@click.command(
    epilog=example(
        "holdfast delete 42 --db app.db",
        "holdfast delete 42 --chain --cascade --dry-run --db app.db",
        "holdfast delete --status cancelled --db app.db",
    )
)
@click.option("--chain", "whole", is_flag=True, help="All of the chain that each ID belongs to.")
@click.option("--cascade", is_flag=True, help="Also what waits for them, and what waits for that.")
@takes_jobs(complete_jobs)
def delete(
    database: DatabaseOption,
    ids: tuple[int, ...],
    filters: Filters,
    consent: Consent,
    signature: AuditOptions,
    whole: bool,
    cascade: bool,
) -> None:
    """Delete jobs with their history. Running ones are left: cancel them first.

    A job that others wait for is left, unless --cascade deletes those too. One of a longer chain is left, unless
    --chain deletes all of it.
    """
    check_which(DELETE, ids, filters)
    for name, given in (("--chain", whole), ("--cascade", cascade)):
        if given and filters:
            raise click.UsageError(f"{name} goes with ids, not with filters")
    report = BulkReport(DELETE, consent)
    with database.open() as app:
        if ids:
            _ById(app, report, consent, whole, cascade, signature).delete(ids)
        else:
            _by_filters(app, report, consent, filters, signature)
    report.end()


def _by_filters(
    app: Holdfast, report: BulkReport, consent: Consent, filters: Filters, signature: AuditOptions
) -> None:
    def count_deletable(wanted: Filters) -> Counted:
        can_go, fitting = count(app, wanted, deletable=True), count(app, wanted)
        left = fitting.count - can_go.count if fitting.is_complete and can_go.is_complete else 0
        if left > 0:
            jobs = f"{plural(left, 'job')} that {'fits is' if left == 1 else 'fit are'} left"
            note(f"{jobs}: others wait for them, or not all of their chain fits")
        return can_go

    by_filters(functools.partial(app.jobs.delete, **signature), count_deletable, filters, report, DELETE, consent)


class _ById:
    """One after the other. What went with one of them need not go again."""

    def __init__(
        self, app: Holdfast, report: BulkReport, consent: Consent, whole: bool, cascade: bool, signature: AuditOptions
    ) -> None:
        self._app, self._report, self._dry_run = app, report, consent.dry_run
        self._whole, self._cascade, self._signature = whole, cascade, signature
        self._gone: set[int] = set()

    def delete(self, ids: Sequence[int]) -> None:
        for one in dict.fromkeys(ids):
            if one in self._gone:
                continue
            try:
                self._delete(one)
            except JobNotFound as error:
                self._report.not_found.append(one)
                note(str(error))

    def _delete(self, id: int) -> None:
        chain = self._app.chains.get(id)
        if chain.length > 1 and not self._whole:
            self._refuse_part(id, chain.id, chain.length)
            return
        would = self._app.store.workflows.delete_chain(chain.id, self._cascade, "", dry_run=True)
        waiting = tuple(one for one in would.waiting if one not in self._gone)
        if waiting:
            self._refuse_awaited(id, waiting, chain.length)
        elif would.running:
            self._refuse_running(id, would.running)
        elif self._dry_run or self._try(id, chain.id, chain.length):
            fresh = set(would.ids) - self._gone
            self._gone |= fresh
            self._report.matched += len(fresh)
            self._report.done += 0 if self._dry_run else len(fresh)

    def _try(self, id: int, chain_id: int, length: int) -> bool:
        """It may have changed since it was looked at."""
        act = self._app.chains.delete if self._whole else self._app.jobs.delete
        try:
            done = act(id, cascade=self._cascade, **self._signature)
        except HasWaitingJobs as error:
            self._refuse_awaited(id, error.waiting, length)
            return False
        except PartOfChain:
            self._refuse_part(id, chain_id, length)
            return False
        if not done:
            self._refuse(id, "changed", "it has changed in the meantime")
        return done

    def _refuse_part(self, id: int, chain_id: int, length: int) -> None:
        why = f"it is one of {length} in the chain {chain_id}, which goes only as a whole: add --chain"
        self._refuse(id, "part_of_chain", why, chain_id=chain_id, length=length)

    def _refuse_awaited(self, id: int, waiting: tuple[int, ...], length: int) -> None:
        wait = "waits" if len(waiting) == 1 else "wait"
        what = "it" if length == 1 else "its chain"
        why = (
            f"{plural(len(waiting), 'job')} {wait} for {what} ({_some(waiting)}): cancel what waits, or add --cascade"
        )
        self._refuse(id, "awaited", why, waiting=waiting)

    def _refuse_running(self, id: int, running: tuple[int, ...]) -> None:
        others = tuple(one for one in running if one != id)
        what = f"job {_some(others)}, which would go with it, is running" if others else "it is running"
        self._refuse(id, "running", f"{what}: cancel that first", running=running)

    def _refuse(self, id: int, reason: str, why: str, **more: Any) -> None:
        status = self._app.jobs.get(id).status
        self._report.refused.append({"id": id, "status": status, "reason": reason, **more})
        note(f"job {id} is left: {why}")


def _some(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - MOST_NAMED:,} more" if len(ids) > MOST_NAMED else ""
    return f"{', '.join(map(str, ids[:MOST_NAMED]))}{more}"
