"""Chains: a job, and what it went on with. `app.chains`."""

from __future__ import annotations  # so that they cost nothing at import

from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from ..errors import JobNotFound, StillAwaited
from ..model import JobRecord, Page, Status
from . import checks
from .job import Job, still
from .jobs import Filters, criteria, page_of
from .waiting import wait_until

if TYPE_CHECKING:
    from .app import App


class Chain:
    """A chain as it was when it was last read. Every job is a chain of at least one."""

    def __init__(self, app: App, last: JobRecord) -> None:
        self._app, self._last = app, last

    @property
    def app(self) -> App:
        """The app through which it was read."""
        return self._app

    @property
    def id(self) -> int:
        """The id of its first job, its root."""
        return self._last.chain

    @property
    def status(self) -> Status:
        """That of its last job."""
        return self._last.status

    @property
    def length(self) -> int:
        """How many jobs it has so far."""
        return self._last.chain_index + 1

    @property
    def last(self) -> Job[Any]:
        return Job(self._app, self._last)

    @property
    def result(self) -> Any:
        """The result of its last job; None while there is none."""
        return self.last.result

    @property
    def is_finished(self) -> bool:
        return self.last.is_finished

    @property
    def finished_at(self) -> datetime | None:
        return self.last.finished_at

    def jobs(self) -> list[Job[Any]]:
        """Its jobs, in order, as they are now."""
        return [Job(self._app, record) for record in self._app.store.workflows.chain(self.id)]

    def refresh(self) -> Chain:
        """Read its last job again, which may be another, and return it."""
        self._last = _end_of(self._app, self.id)
        return self

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for its end and return the last job's result. Raises JobFailed, or WaitTimeout after the seconds."""
        wait_until(self._app.store, lambda: self.refresh().is_finished, timeout, self._describe)
        if self.status != "succeeded":
            raise self.last.failure()
        return self.result

    def _describe(self) -> str:
        return still(f"chain {self.id}", self.last)

    def __repr__(self) -> str:
        return f"<Chain {self.id}: {self.status} at job {self._last.id}, {self.length} so far>"


class Chains:
    def __init__(self, app: App) -> None:
        self._app = app

    def get(self, id: int) -> Chain:
        """The chain of this id, or that the job of this id belongs to."""
        return Chain(self._app, _end_of(self._app, self._app.jobs.get(id).chain_id))

    def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[Filters]) -> Page[Chain]:
        """Newest first. `status` is that of the chain; the other filters are about its first job."""
        wanted = criteria(filters)
        wanted = replace(wanted, status=(), chain_status=wanted.status, roots=True, messages=False)
        page = page_of(self._app.store, wanted, limit, cursor)
        chains = [Chain(self._app, root if not root.continued else _end_of(self._app, root.id)) for root in page]
        return Page(chains, page.next, page.previous, page.looked_at)

    def delete(self, id: int, *, cascade: bool = False, actor: str | None = None, reason: str = "") -> bool:
        """Remove all its jobs, with their attempts and events. False if one of them is running: cancel it first.

        Where others wait for it, StillAwaited is raised. With `cascade`, they and their chains are deleted, too.
        """
        checks.flag(cascade, "cascade")
        chain_id = self._app.jobs.get(id).chain_id
        by = checks.actor(actor), checks.reason(reason)
        deletion = self._app.store.workflows.delete_chain(chain_id, cascade, *by)
        if deletion.waiting:
            raise StillAwaited(chain_id, deletion.waiting)
        return bool(deletion.ids)


def _end_of(app: App, chain_id: int) -> JobRecord:
    found = app.store.workflows.chain(chain_id, last_only=True)
    if not found:
        raise JobNotFound(f"chain {chain_id} is gone: it was deleted")
    return found[0]
