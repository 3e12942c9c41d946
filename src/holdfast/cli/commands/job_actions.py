"""`holdfast retry`, `cancel`, `run-now`, `complete`, `fail` and `delete`: change jobs, by ids or by filters."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import click

from ...app.jobs import Filters
from ...app.workflows import Chain
from ...errors import HasWaitingJobs, InvalidPayload, JobNotFound, PartOfChain
from ...model.job import STATES_FOR, Counted
from ...supervisor import Holdfast
from ..bulk import CHANGED, Action, BulkOptions, BulkRun, check_selection, count, print_result
from ..options import (
    AuditOptions,
    DatabaseOption,
    attempts_option,
    audit_options,
    change_options,
    complete_jobs,
    complete_retryable,
    complete_scheduled,
    complete_unfinished,
    delay_option,
    example,
    filter_options,
    job_id,
    read_options,
    yes_option,
)
from ..output import note, plural
from .send import parse

F = TypeVar("F", bound=Callable[..., Any])
RETRY = Action("retry", "retried", STATES_FOR["retry"], default_states=("failed",))
CANCEL = Action("cancel", "cancelled", STATES_FOR["cancel"])
RUN_NOW = Action("run now", "made ready", STATES_FOR["run_now"])


def bulk_command(complete: Any) -> Callable[[F], F]:
    """Add ids, filters, --actor, --reason, --yes, --dry-run and --json. complete: shell completion of the ids."""

    def decorate(command: F) -> F:
        @click.argument("ids", nargs=-1, metavar="[ID]…", type=job_id, shell_complete=complete)
        @filter_options
        @audit_options
        @yes_option
        @click.option("--dry-run", "-n", is_flag=True, help="Only print how many jobs would be changed.")
        @click.option(
            "--background",
            is_flag=True,
            help="With filters: let a worker or the web server do it, as a bulk operation, and return at once.",
        )
        @read_options
        @functools.wraps(command)
        def with_options(*args: Any, yes: bool, dry_run: bool, background: bool, as_json: bool, **given: Any) -> Any:
            return command(*args, options=BulkOptions(yes, dry_run, as_json, background), **given)

        return cast(F, with_options)

    return decorate


@click.command(
    epilog=example(
        "holdfast retry 42 43 --db app.db",
        "holdfast retry --error-code DEPENDENCY:SMTP --since 2h --db app.db",
    )
)
@attempts_option
@delay_option
@bulk_command(complete_retryable)
def retry(
    database: DatabaseOption,
    ids: tuple[int, ...],
    filters: Filters,
    options: BulkOptions,
    attempts: int | None,
    delay: float,
    audit: AuditOptions,
) -> None:
    """Run failed or cancelled jobs again.

    Select jobs by ID or by filters. Filters select failed jobs; add --status cancelled for cancelled ones.
    """
    with database.open() as app:
        how = {"attempts": attempts, "delay": delay, **audit}
        BulkRun(app, RETRY, options).run(functools.partial(app.jobs.retry, **how), ids, filters, how)


@click.command(
    epilog=example(
        "holdfast cancel 42 --reason 'sent by hand' --db app.db",
        "holdfast cancel --queue mail --db app.db",
    )
)
@bulk_command(complete_unfinished)
def cancel(
    database: DatabaseOption, ids: tuple[int, ...], filters: Filters, options: BulkOptions, audit: AuditOptions
) -> None:
    """Cancel unfinished jobs. The outcome of an attempt that is running is discarded."""
    with database.open() as app:
        BulkRun(app, CANCEL, options).run(functools.partial(app.jobs.cancel, **audit), ids, filters, audit)


@click.command("run-now", epilog=example("holdfast run-now 42 --db app.db"))
@bulk_command(complete_scheduled)
def run_now(
    database: DatabaseOption, ids: tuple[int, ...], filters: Filters, options: BulkOptions, audit: AuditOptions
) -> None:
    """Make scheduled jobs ready now."""
    with database.open() as app:
        BulkRun(app, RUN_NOW, options).run(functools.partial(app.jobs.run_now, **audit), ids, filters, audit)


id_argument = click.argument("id", type=job_id, shell_complete=complete_unfinished)


@click.command(
    epilog=example(
        "holdfast complete 7 --db app.db",
        """holdfast complete 7 --result '{"approved": true}' --actor kim --db app.db""",
    )
)
@id_argument
@click.option("--result", metavar="JSON", help='The result of the job; "-" reads it from standard input.')
@change_options
def complete(database: DatabaseOption, id: int, result: str | None, audit: AuditOptions, as_json: bool) -> None:
    """Mark a job as succeeded.

    The job can be external (no worker runs it) or any other unfinished job. The outcome of an attempt that is running
    is discarded. Exits with 1 if the job was already finished.
    """
    value = None if result is None else _parse_result(result)
    with database.open() as app:
        _print_settled(app, id, app.jobs.complete(id, value, **audit), as_json)


@click.command(
    epilog=example(
        "holdfast fail 7 REJECTED:BUDGET --db app.db",
        "holdfast fail 7 REJECTED:BUDGET --detail 'too much' --actor kim --db app.db",
    )
)
@id_argument
@click.argument("code")
@click.option("--detail", default="", metavar="TEXT", help="Error detail, stored with the job.")
@change_options
def fail(database: DatabaseOption, id: int, code: str, detail: str, audit: AuditOptions, as_json: bool) -> None:
    """Mark a job as failed, with an error code.

    CODE is a category with an optional detail, such as REJECTED:BUDGET. The job can be external (no worker runs it)
    or any other unfinished job. It is not retried. Exits with 1 if the job was already finished.
    """
    with database.open() as app:
        _print_settled(app, id, app.jobs.fail(id, code, detail, **audit), as_json)


def _parse_result(text: str) -> object:
    try:
        return parse(sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape"))
    except InvalidPayload as error:
        raise type(error)(f"--result: {error}") from None


def _print_settled(app: Holdfast, id: int, done: bool, as_json: bool) -> None:
    status = app.jobs.get(id).status
    sentence = f"Job {id} {status}." if done else f"Job {id} is already {status}: nothing changed."
    print_result({"id": id, "status": status, "done": done}, sentence, done, as_json)


DELETE = Action("delete", "deleted", STATES_FOR["delete"])
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
        run.check_background(ids)
        if ids:
            _DeleteByIds(app, run, options.dry_run, whole_chain, cascade, audit).delete(ids)
        else:
            act = functools.partial(app.jobs.delete, **audit)
            run.apply_to_filters(act, filters, _count_deletable(app), audit)
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
