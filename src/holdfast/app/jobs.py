"""`app.jobs`: find jobs and operate on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import Struct

from .. import validate
from ..clock import as_datetime, with_datetimes
from ..codec import encode, encode_result
from ..errors import InvalidArguments, InvalidInput, JobNotFound, PartOfChain
from ..failure import Failure, check_code, shorten
from ..model.job import DEFAULT_QUEUE, NAME_FIELDS, Criteria, Cursor, JobRecord, Listed, NewJob, Page, TimelineEntry
from ..store.protocol import OperatorAction, Store
from .job import Job
from .waiting import in_thread

if TYPE_CHECKING:
    from .app import App
    from .explain import Explanation
    from .options import EnqueueOptions
    from .workflows import Relations


MAX_PAGE = 1000
MAX_PATTERNS = 100
FINISHING_ACTIONS = ("cancel", "complete", "fail_outside")
Texts = str | Sequence[str]


class Filters(TypedDict, total=False):
    """Filters for jobs. A text filter is one value or several; a time range includes its start and not its end."""

    status: Texts
    queue: Texts
    task: Texts
    key: Texts
    error_code: Texts
    fingerprint: Texts
    """Of the place in the code where the last attempt failed, as `app.observe.failures()` and histories tell it."""
    tag: Texts
    batch: int | Sequence[int]
    queue_like: Texts
    """Patterns, in which `*` is any text: of queue_like, task_like and error_code_like."""
    task_like: Texts
    error_code_like: Texts
    args: Mapping[str, str]
    """Patterns of values in the payload by their path, such as {"user.name": "ada*"}. Read without an index."""
    created_after: datetime
    created_before: datetime
    finished_after: datetime
    finished_before: datetime


class HistoryEntry(Struct, frozen=True):
    """One entry of a job's history: an event, or an attempt from its claim to its end."""

    at: datetime
    kind: Literal["event", "attempt"]
    name: str
    """The event, or the outcome of the attempt ('running' until it ends)."""
    attempt: int
    actor: str | None
    detail: dict[str, Any]

    @classmethod
    def from_timeline(cls, entry: TimelineEntry) -> "HistoryEntry":
        return cls(
            as_datetime(entry.at), entry.kind, entry.name, entry.attempt, entry.actor, with_datetimes(entry.detail)
        )


class Jobs:
    """`app.jobs`. An operation takes an id and returns a bool, or takes filters and returns the number of jobs."""

    def __init__(self, app: "App") -> None:
        self._app = app

    def get(self, id: int) -> Job[Any]:
        """Return the job with this id. Raises JobNotFound."""
        record = self._app.store.jobs.get(validate.job_id(id))
        if record is None:
            raise JobNotFound(f"there is no job {id}: it never existed, or it was deleted")
        return Job(self._app, record)

    def enqueue(
        self,
        task: str,
        args: Mapping[str, Any] | None = None,
        /,
        *,
        actor: str | None = None,
        reason: str = "",
        **options: "Unpack[EnqueueOptions]",
    ) -> Job[Any]:
        """Enqueue a job by the name of its task, with arguments as plain JSON values.

        If this app has the task, its signature checks the arguments and its options are the defaults. An app without
        tasks, as of a program that only operates a database, stores the job unchecked. The event log has actor and
        reason.
        """
        from .options import EnqueueOptions, checked

        name = validate.name(task, "task name")
        if args is not None and not isinstance(args, Mapping):
            raise InvalidArguments(f"the arguments of a task must be a JSON object, got {validate.shown(args)}")
        new = self._new_job(name, encode(dict(args or {})), checked(options, EnqueueOptions.__annotations__))
        if actor is not None:
            new = msgspec.structs.replace(new, actor=validate.actor(actor))
        if reason:
            new = msgspec.structs.replace(new, reason=validate.reason(reason))
        app, conn = self._app, options.get("conn")
        inserted = (app._tracing or app.store.jobs).insert(new, conn)
        job: Job[Any] = Job(app, inserted.record(new), deduplicated=inserted.existing is not None)
        if app._inline is not None and name in app.tasks:
            app._inline.enqueued(app, [job.id], conn)
        return job

    def _new_job(self, task: str, args: bytes, options: dict[str, Any]) -> NewJob:
        from .options import LINK_OPTIONS
        from .task import BoundTask

        known = self._app.tasks.get(task)
        if known is None and self._app.tasks:
            raise validate.suggest(task, self._app.tasks, "task")
        if known is None:
            options.pop("conn", None)
            if links := options.keys() & set(LINK_OPTIONS):
                raise InvalidInput(f"{min(links)} needs the task {task!r} itself: use an app that has it")
            return NewJob(task=task, args=args.decode(), **{"queue": DEFAULT_QUEUE} | options)
        try:
            known.signature.decode(args)
        except msgspec.DecodeError as error:
            problem = shorten(str(error))
            raise InvalidArguments(f"{task}: the arguments do not match its signature: {problem}") from None
        return BoundTask(known, options).new_job(args.decode())

    def list(self, *, limit: int = 50, cursor: str | None = None, **filters: Unpack[Filters]) -> Page[Job[Any]]:
        """Return a page of jobs, newest first. `page.next` and `page.previous` are cursors to older and newer jobs.

        A search without a suitable index stops after a bounded number of jobs, `page.scanned`. The page may then be
        incomplete or empty, and its cursor continues the search.
        """
        page = page_of(self._app.store, criteria(filters), limit, cursor)
        return Page([Job(self._app, record) for record in page], page.next, page.previous, page.scanned)

    def count(self, **filters: Unpack[Filters]) -> int:
        """Return the number of matching jobs.

        By status, queue and task the number is known. Other filters scan the jobs in many short reads, which takes
        seconds for millions of jobs.
        """
        return self._app.store.jobs.count(criteria(filters)).count

    @overload
    def retry(
        self, id: int, /, *, delay: float = 0, attempts: int | None = None, actor: str | None = None, reason: str = ""
    ) -> bool: ...
    @overload
    def retry(
        self,
        id: None = None,
        /,
        *,
        delay: float = 0,
        attempts: int | None = None,
        actor: str | None = None,
        reason: str = "",
        **filters: Unpack[Filters],
    ) -> int: ...
    def retry(
        self,
        id: int | None = None,
        /,
        *,
        delay: float = 0,
        attempts: int | None = None,
        actor: str | None = None,
        reason: str = "",
        **filters: Unpack[Filters],
    ) -> bool | int:
        """Run failed or cancelled jobs again: -> ready, or blocked by their blockers.

        attempts: how many more a job has; by default as many as it was enqueued with.
        A job is skipped if an unfinished job has its key, or if it would wait for a job that waits for it.
        """
        return self._operate(
            "requeue",
            id,
            filters,
            actor,
            delay=validate.duration(delay, "delay"),
            attempts=None if attempts is None else validate.integer(attempts, "attempts", 1, 1000),
            reason=validate.reason(reason),
        )

    @overload
    def cancel(self, id: int, /, *, reason: str = "", actor: str | None = None) -> bool: ...
    @overload
    def cancel(
        self, id: None = None, /, *, reason: str = "", actor: str | None = None, **filters: Unpack[Filters]
    ) -> int: ...
    def cancel(
        self,
        id: int | None = None,
        /,
        *,
        reason: str = "",
        actor: str | None = None,
        **filters: Unpack[Filters],
    ) -> bool | int:
        """Cancel unfinished jobs. What a running attempt does after that is not recorded."""
        return self._operate("cancel", id, filters, actor, reason=validate.reason(reason))

    @overload
    def run_now(self, id: int, /, *, actor: str | None = None, reason: str = "") -> bool: ...
    @overload
    def run_now(
        self, id: None = None, /, *, actor: str | None = None, reason: str = "", **filters: Unpack[Filters]
    ) -> int: ...
    def run_now(
        self, id: int | None = None, /, *, actor: str | None = None, reason: str = "", **filters: Unpack[Filters]
    ) -> bool | int:
        """Make scheduled jobs ready now."""
        return self._operate("run_now", id, filters, actor, reason=validate.reason(reason))

    def complete(self, id: int, result: Any = None, *, actor: str | None = None, reason: str = "") -> bool:
        """Let an unfinished job, external or not, succeed with this result. False if it has finished already.

        What a running attempt does after that is not recorded.
        """
        job = self._get_task_job(id)
        data = None if result is None else encode_result(result)
        task = self._app.tasks.get(job.task or "")
        if data is not None and task is not None and not job.is_external:
            task.signature.check_result(data)
        text = None if data is None else data.decode()
        return bool(self._operate("complete", id, {}, actor, result=text, reason=validate.reason(reason)))

    def fail(self, id: int, code: str, detail: str = "", *, actor: str | None = None, reason: str = "") -> bool:
        """Let an unfinished job fail with an error code such as "REJECTED:BUDGET". False if it has finished already.

        detail: stored with the job and its attempt. reason: of the operator, for the event log.
        """
        failure = Failure(check_code(code), shorten(validate.text(detail, "detail")))
        self._get_task_job(id)
        return bool(self._operate("fail_outside", id, {}, actor, failure=failure, reason=validate.reason(reason)))

    def _get_task_job(self, id: int) -> Job[Any]:
        job = self.get(id)
        if job.task is None:
            raise InvalidInput(f"job {id} is a message: receive it from queue {job.queue!r}, and ack or fail it")
        return job

    @overload
    def delete(self, id: int, /, *, cascade: bool = False, actor: str | None = None, reason: str = "") -> bool: ...
    @overload
    def delete(
        self, id: None = None, /, *, actor: str | None = None, reason: str = "", **filters: Unpack[Filters]
    ) -> int: ...
    def delete(
        self,
        id: int | None = None,
        /,
        *,
        cascade: bool = False,
        actor: str | None = None,
        reason: str = "",
        **filters: Unpack[Filters],
    ) -> bool | int:
        """Delete jobs with their attempts and events. Running jobs are skipped: cancel them first.

        By id, HasWaitingJobs is raised if other jobs wait for it, unless `cascade` deletes these, too; PartOfChain is
        raised if its chain has more jobs. By filters, such jobs are skipped, unless the whole chain matches.
        """
        if validate.flag(cascade, "cascade") and id is None:
            raise InvalidInput("cascade needs an id: it does not work with filters")
        if id is None or filters:
            return self._operate("delete", id, filters, actor, reason=validate.reason(reason))
        chain = self._app.chains.get(id)
        if chain.length > 1:
            raise PartOfChain(
                f"job {id} is one of {chain.length} in chain {chain.id}, which can only be deleted as a whole: "
                f"app.chains.delete({chain.id}), or holdfast delete --chain {chain.id}"
            )
        return self._app.chains.delete(id, cascade=cascade, actor=actor, reason=reason)

    def explain(self, id: int, *, hide_messages: bool = False) -> "Explanation":
        """Explain in one sentence why the job is in its state, and what would change that.

        hide_messages: leave out error messages and progress texts, which often have arguments in them.
        """
        from .explain import explain

        return explain(self._app, id, validate.flag(hide_messages, "hide_messages"))

    def inbox(self, *, limit: int = 50, cursor: str | None = None) -> Page[Job[Any]]:
        """Return a page of external jobs that wait for `complete` or `fail`, newest first."""
        page = page_of(self._app.store, Criteria(inbox=True), limit, cursor)
        return Page([Job(self._app, record) for record in page], page.next, page.previous)

    def relations(self, id: int) -> "Relations":
        """Return the chain of the job, what it waits for, what waits for it, and its batch."""
        from .workflows import find_relations

        return find_relations(self._app, self.get(id))

    def history(self, id: int) -> "Sequence[HistoryEntry]":
        """Return the attempts and events of the job, in order of time."""
        self.get(id)
        return [HistoryEntry.from_timeline(entry) for entry in self._app.store.jobs.history(id)]

    def traceback(self, fingerprint: str) -> str | None:
        """Return the traceback with the fingerprint of a failed attempt, or None."""
        return self._app.store.jobs.traceback(validate.name(fingerprint, "fingerprint"))

    aenqueue, aget, alist, acount = in_thread(enqueue), in_thread(get), in_thread(list), in_thread(count)
    aretry = in_thread(retry)
    acancel, arun_now, adelete = in_thread(cancel), in_thread(run_now), in_thread(delete)
    acomplete, afail = in_thread(complete), in_thread(fail)
    ainbox, arelations = in_thread(inbox), in_thread(relations)
    aexplain, ahistory, atraceback = in_thread(explain), in_thread(history), in_thread(traceback)

    def _operate(
        self, action: OperatorAction, id: int | None, filters: Filters, actor: str | None, **how: Any
    ) -> bool | int:
        who = validate.actor(actor)
        if id is None:
            wanted = criteria(filters)
            if wanted == Criteria():
                raise InvalidInput("no jobs were named: pass an id, or at least one filter such as status='failed'")
            return self._app.store.jobs.operate(action, wanted, who, **how)
        if filters:
            raise InvalidInput("pass an id or filters, not both")
        done = self._app.store.jobs.operate(action, Criteria(ids=(validate.job_id(id),)), who, **how)
        if not done:
            self.get(id)  # raises JobNotFound; otherwise its state did not allow it
        elif action in FINISHING_ACTIONS and self._app._inline is not None:
            self._app._inline.ended(self._app, id)
        return bool(done)


def page_of(store: Store, wanted: Criteria, limit: int, cursor: str | None) -> Page[JobRecord]:
    stopped: list[Listed] = []

    def read(most: int, place: Cursor | None) -> Sequence[JobRecord]:
        listed = store.jobs.list(wanted, most, place)
        if listed.resume is not None:
            stopped.append(listed)
        return listed.records

    page = page_by_id(read, limit, cursor)
    if not stopped:
        return page
    (listed,) = stopped
    return _stopped_page(listed, listed.resume or 0, None if cursor is None else _read_cursor(cursor))


class HasId(Protocol):
    @property
    def id(self) -> int: ...


Row = TypeVar("Row", bound=HasId)


def page_by_id(read: Callable[[int, Cursor | None], Sequence[Row]], limit: int, cursor: str | None) -> Page[Row]:
    """Return a page of rows, newest first. read: given a limit and a cursor, returns the rows from there."""
    validate.integer(limit, "limit", 1, MAX_PAGE)
    place = None if cursor is None else _read_cursor(cursor)
    backwards = place is not None and place.newer
    rows = [*read(limit + 1, place)]
    more = len(rows) > limit
    if more:  # the extra row only shows that there are more
        rows = rows[1:] if backwards else rows[:-1]
    has_older, has_newer = (True, more) if backwards else (more, place is not None)
    if not rows and place is not None:  # the rows there were deleted: the way back starts at the same place
        back = _write_cursor(Cursor(place.id + 1 if backwards else place.id - 1, newer=not backwards))
        return Page([], next=back if backwards else None, previous=None if backwards else back)
    return Page(
        rows,
        next=_write_cursor(Cursor(rows[-1].id)) if rows and has_older else None,
        previous=_write_cursor(Cursor(rows[0].id, newer=True)) if rows and has_newer else None,
    )


def all_records(store: Store, wanted: Criteria) -> Iterator[JobRecord]:
    """Iterate over all matching jobs, oldest first, page by page."""
    place: Cursor | None = Cursor(0, newer=True)
    while place is not None:
        listed = store.jobs.list(wanted, MAX_PAGE, place)
        yield from reversed(listed.records)
        last = listed.records[0].id if len(listed.records) == MAX_PAGE else listed.resume
        place = None if last is None else Cursor(last, newer=True)


def _stopped_page(listed: Listed, resume: int, place: Cursor | None) -> Page[JobRecord]:
    """Return the page of a search that stopped early: one cursor continues it, the other leads back."""
    records = listed.records
    if place is not None and place.newer:
        older, newer = Cursor(records[-1].id if records else place.id + 1), Cursor(resume, newer=True)
        return Page(records, _write_cursor(older), _write_cursor(newer), listed.scanned)
    older = Cursor(resume)
    if place is None:
        return Page(records, _write_cursor(older), None, listed.scanned)
    newer = Cursor(records[0].id if records else place.id - 1, newer=True)
    return Page(records, _write_cursor(older), _write_cursor(newer), listed.scanned)


def criteria(filters: Filters) -> Criteria:
    unknown = filters.keys() - Filters.__annotations__.keys()
    if unknown:
        raise validate.suggest(sorted(unknown)[0], Filters.__annotations__, "filter")

    def moment(name: str) -> int | None:
        value = filters.get(name)
        return None if value is None else validate.moment(value, name)

    like = tuple(
        (field, pattern)
        for field in NAME_FIELDS
        for pattern in validate.one_or_several(filters.get(f"{field}_like"), f"{field}_like")
    )
    if len(like) > MAX_PATTERNS:
        raise InvalidInput(f"a search may have at most {MAX_PATTERNS} patterns, got {len(like)}")
    return Criteria(
        status=validate.statuses(filters.get("status")),
        queue=validate.one_or_several(filters.get("queue"), "queue"),
        task=validate.one_or_several(filters.get("task"), "task"),
        key=validate.one_or_several(filters.get("key"), "key"),
        error_code=validate.one_or_several(filters.get("error_code"), "error_code"),
        fingerprint=validate.one_or_several(filters.get("fingerprint"), "fingerprint"),
        tag=validate.one_or_several(filters.get("tag"), "tag"),
        batch_id=validate.one_or_several_ids(filters.get("batch"), "batch"),
        created_from=moment("created_after"),
        created_before=moment("created_before"),
        finished_from=moment("finished_after"),
        finished_before=moment("finished_before"),
        like=like,
        args=_argument_patterns(filters.get("args")),
    )


def _argument_patterns(value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise InvalidInput(f"args must be a dict of paths and values, got {validate.shown(value)}")
    for path, pattern in value.items():
        if not isinstance(path, str) or not all(path.split(".")) or '"' in path:
            raise InvalidInput(f"a path in args must be like user.name, got {validate.shown(path)}")
        validate.one_or_several([path, pattern], "args")
    return tuple(value.items())


def _write_cursor(cursor: Cursor) -> str:
    return f"{'newer' if cursor.newer else 'older'}-{cursor.id}"


def _read_cursor(text: str) -> Cursor:
    side, _, number = text.partition("-") if isinstance(text, str) else ("", "", "")
    if side not in ("newer", "older") or not number.isdecimal() or not number.isascii() or len(number) > 19:
        raise InvalidInput(
            f"cursor must be page.next or page.previous of an earlier list(), got {validate.shown(text)}"
        )
    return Cursor(min(int(number), 2**63 - 1), newer=side == "newer")
