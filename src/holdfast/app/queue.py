"""`app.queue("inbox")`: queues of messages, after Amazon SQS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from .. import validate
from ..blobs import is_reference
from ..clock import SECOND
from ..codec import checker, decoder, encode, is_json
from ..errors import BlobMissing, InvalidInput, LeaseLost, StoreError
from ..failure import Failure, check_code, shorten
from ..model.job import Claimed, Criteria, Cursor, Lease, LeaseRenewal, NewJob, Settlement, Transition
from ..model.stats import QueueStats, queue_stats
from ..validate import NOT_GIVEN
from .job import Job
from .options import Seconds
from .waiting import Wait, in_thread

if TYPE_CHECKING:
    from .app import App


T = TypeVar("T")
MAX_RECEIVE = 1000


class Message(Generic[T]):
    """A received message. It is hidden from other consumers until its visibility ends."""

    def __init__(self, queue: Queue[T], lease: Lease, body: T, trace: str | None = None) -> None:
        self._queue, self._lease = queue, lease
        self.body, self.trace = body, trace

    @property
    def _app(self) -> App:
        return self._queue._app

    @property
    def id(self) -> int:
        return self._lease.id

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self._lease.attempt

    def ack(self) -> bool:
        """Acknowledge the message: it is done. False if the lease was lost to another consumer."""
        return self._queue._ack(self._lease)

    def ack_with(self, *, conn: Any = NOT_GIVEN) -> AbstractContextManager[Any]:
        """Open a transaction in which the message is acknowledged: `with msg.ack_with() as tx:`.

        conn: your own connection or session, in the place of Holdfast's, as for `ctx.complete(conn=…)`.
        Both commit, or neither does. If the block raises, its writes are rolled back, and the message is still held.
        If the lease was lost, LeaseLost is raised and nothing is stored.
        """
        return self._queue._ack_with(self._lease, None if conn is NOT_GIVEN else validate.connection(conn))

    def extend(self, seconds: Seconds) -> bool:
        """Extend the lease to this many seconds from now; 0 releases the message. False if the lease was lost."""
        return self._queue._extend(self._lease, seconds)

    def release(self, delay: Seconds = 0) -> bool:
        """Release the message for another delivery after the delay. False if the lease was lost."""
        return self._queue._release(self._lease, delay)

    def fail(self, code: str, detail: str = "") -> bool:
        """Make the message a dead letter, with an error code of your own. False if the lease was lost."""
        return self._queue._fail(self._lease, code, detail)

    aack, aextend, arelease, afail = in_thread(ack), in_thread(extend), in_thread(release), in_thread(fail)

    def __repr__(self) -> str:
        return f"<Message {self.id} on {self._queue.name}, attempt {self.attempt}>"


class Queue(Generic[T]):
    """A queue of messages. It is not declared anywhere: it exists once a message was sent to it."""

    def __init__(self, app: App, name: str, type: Any, visibility: int, max_attempts: int, history: bool) -> None:
        self._app, self.name = app, name
        self._visibility, self._max_attempts, self._history = visibility, max_attempts, history
        try:
            self._decode = decoder(type)
        except TypeError as error:
            raise InvalidInput(f"queue {name!r}: type must be decodable from JSON, got {type!r}: {error}") from None
        self._check = None if type is Any else checker(type)

    # --- sending ---

    def send(
        self, body: T, *, delay: Seconds = 0, priority: int = 0, key: str | None = None, conn: Any = NOT_GIVEN
    ) -> int:
        """Store a message and return its id. It is on disk when this returns, or when `conn` commits."""
        job = NewJob(
            queue=self.name,
            task=None,
            args=self._encode(body),
            delay=validate.duration(delay, "delay"),
            priority=validate.priority(priority),
            max_attempts=self._max_attempts,
            key=None if key is None else validate.name(key, "key", validate.MAX_KEY),
            history=self._history,
        )
        within = None if conn is NOT_GIVEN else validate.connection(conn)
        return (self._app._tracing or self._app.store.jobs).insert(job, within).id

    def send_many(
        self, bodies: Iterable[T], *, delay: Seconds = 0, priority: int = 0, conn: Any = NOT_GIVEN
    ) -> list[int]:
        """Store all messages in one transaction and return their ids in order. If one cannot be stored, none is."""
        validate.iterable(bodies, "send_many")
        like = NewJob(
            queue=self.name,
            task=None,
            args="",
            delay=validate.duration(delay, "delay"),
            priority=validate.priority(priority),
            max_attempts=self._max_attempts,
            history=self._history,
        )
        within = None if conn is NOT_GIVEN else validate.connection(conn)
        return (self._app._tracing or self._app.store.jobs).insert_many(like, map(self._encode, bodies), within)

    def _encode(self, body: T) -> str:
        data = encode(body)
        if self._check is not None:
            try:
                self._check(body)
                self._decode(data)
            except ValueError as error:  # msgspec's ValidationError is one
                problem = shorten(str(error))
                raise InvalidInput(f"queue {self.name!r}: the body has the wrong type: {problem}") from None
        return data.decode()

    # --- receiving ---

    def receive(self, *, visibility: Seconds | None = None, wait: Seconds = 0) -> Message[T] | None:
        """Return the next message, or None. It is hidden from other consumers for `visibility` seconds.

        wait: if the queue is empty, wait up to this many seconds for a message from any process.
        """
        messages = self._receive(1, visibility, wait)
        return messages[0] if messages else None

    def receive_many(self, limit: int, *, visibility: Seconds | None = None, wait: Seconds = 0) -> list[Message[T]]:
        """Return up to `limit` messages, as soon as there is one."""
        return self._receive(validate.integer(limit, "limit", 1, MAX_RECEIVE), visibility, wait)

    async def areceive(self, *, visibility: Seconds | None = None, wait: Seconds = 0) -> Message[T] | None:
        """Do the same as `receive` in a coroutine. While it waits it holds no thread.

        If it is cancelled, a message that was just claimed is given back, and the delivery does not count.
        """
        messages = await self.areceive_many(1, visibility=visibility, wait=wait)
        return messages[0] if messages else None

    async def areceive_many(
        self, limit: int, *, visibility: Seconds | None = None, wait: Seconds = 0
    ) -> list[Message[T]]:
        """Do the same as `receive_many` in a coroutine, as `areceive` does."""
        validate.integer(limit, "limit", 1, MAX_RECEIVE)
        lease, seconds = self._lease_time(visibility), validate.duration(wait, "wait") / SECOND
        self._app.store.require_no_transaction()
        return await self._waiting(seconds, limit).run_async(lambda: self._claim(limit, lease), self._give_back)

    def _receive(self, limit: int, visibility: Seconds | None, wait: Seconds) -> list[Message[T]]:
        lease, seconds = self._lease_time(visibility), validate.duration(wait, "wait") / SECOND
        if not seconds:
            return self._claim(limit, lease)
        return self._waiting(seconds, limit).run(lambda: self._claim(limit, lease))

    def _lease_time(self, visibility: Seconds | None) -> int:
        return self._visibility if visibility is None else validate.duration(visibility, "visibility")

    def _waiting(self, seconds: float, limit: int) -> Wait:
        return Wait(self._app.store, ("queue", self.name), seconds, limit)

    def _give_back(self, messages: list[Message[T]]) -> None:
        for message in messages:
            self._settle(message._lease, "give_back")

    def _claim(self, limit: int, lease: int) -> list[Message[T]]:
        store = self._app.store
        while claimed := store.jobs.claim_messages(self.name, limit, lease, store.actor):
            messages = [message for one in claimed if (message := self._open(one)) is not None]
            if messages:
                return messages
            # None of these could be decoded: try the next ones.
        return []

    def _open(self, claimed: Claimed) -> Message[T] | None:
        """Decode a claimed message. One that cannot be decoded fails alone."""
        store, data = self._app.store, claimed.args
        try:
            if claimed.args_blob is not None and is_reference(data, claimed.args_blob):
                data = store.jobs.read_blob(claimed.args_blob)
            return Message(self, claimed.lease, self._decode(data), claimed.origin)
        except (msgspec.DecodeError, ValueError) as error:
            code = "INVALID_INPUT:SCHEMA" if is_json(data) else "INVALID_INPUT:UNDECODABLE"
            failure = Failure(code, shorten(str(error)))
        except BlobMissing as error:
            failure = Failure(self._app.error_table.code_for(error), shorten(str(error)))
        except StoreError as error:  # may be temporary
            failure = Failure("RESOURCE:BLOB_STORE", shorten(str(error)))
            self._settle(claimed.lease, "retry", failure=failure, delay=max(self._visibility, SECOND))
            return None
        self._settle(claimed.lease, "fail", failure=failure)
        return None

    # --- settling ---

    # For consumers that kept only the id and the attempt. Each returns False if the lease was lost.

    def ack(self, id: int, attempt: int) -> bool:
        return self._ack(self._lease(id, attempt))

    def extend(self, id: int, attempt: int, seconds: Seconds) -> bool:
        return self._extend(self._lease(id, attempt), seconds)

    def release(self, id: int, attempt: int, delay: Seconds = 0) -> bool:
        return self._release(self._lease(id, attempt), delay)

    def fail(self, id: int, attempt: int, code: str, detail: str = "") -> bool:
        return self._fail(self._lease(id, attempt), code, detail)

    asend, asend_many = in_thread(send), in_thread(send_many)
    aack, aextend, arelease, afail = in_thread(ack), in_thread(extend), in_thread(release), in_thread(fail)

    def _lease(self, id: int, attempt: int) -> Lease:
        number = validate.integer(attempt, "attempt", 1, 2**31 - 1)
        return Lease(validate.job_id(id), number, self._history, self.name)

    def _ack(self, lease: Lease) -> bool:
        return self._app.store.jobs.settle(Settlement(lease, "succeed", None, self._app.clock.now()))

    def _settle(
        self, lease: Lease, transition: Transition, *, delay: int = 0, failure: Failure | None = None
    ) -> bool:
        now = self._app.clock.now()
        return self._app.store.jobs.settle(Settlement(lease, transition, None, now, delay=delay, failure=failure))

    @contextmanager
    def _ack_with(self, lease: Lease, conn: Any) -> Iterator[Any]:
        lost = f"message {lease.id} is not held by delivery {lease.attempt} any more: nothing was stored"
        store = self._app.store
        with self._app._with_inline(store.transaction(conn=conn)) as opened:
            if not store.jobs.renew([LeaseRenewal(lease)], None, opened):
                raise LeaseLost(lost)
            yield opened
            if not store.jobs.settle(Settlement(lease, "succeed", None, self._app.clock.now()), opened):
                raise LeaseLost(lost)

    def _extend(self, lease: Lease, seconds: Seconds) -> bool:
        duration = validate.duration(seconds, "seconds")
        if not duration:
            return self._settle(lease, "release")
        return bool(self._app.store.jobs.renew([LeaseRenewal(lease)], duration))

    def _release(self, lease: Lease, delay: Seconds) -> bool:
        return self._settle(lease, "release", delay=validate.duration(delay, "delay"))

    def _fail(self, lease: Lease, code: str, detail: str) -> bool:
        failure = Failure(check_code(code), shorten(validate.text(detail, "detail")))
        return self._settle(lease, "fail", failure=failure)

    # --- operating ---

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        store = self._app.store
        with store.snapshot():
            counts = store.statistics.counts(self.name)
            waiting = store.statistics.oldest(-1, ("ready",), self.name)
        return queue_stats(self.name, counts, waiting, self._app.clock.now())

    def dead_letters(self, limit: int = 100, before: int | None = None) -> list[Job[Any]]:
        """Return failed messages, newest first. before: an id, for the next page."""
        validate.integer(limit, "limit", 1, MAX_RECEIVE)
        cursor = None if before is None else Cursor(validate.job_id(before))
        return [Job(self._app, record) for record in self._app.store.jobs.list(self._dead(), limit, cursor).records]

    def requeue(
        self,
        ids: Iterable[int] | None = None,
        *,
        delay: Seconds = 0,
        attempts: int | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> int:
        """Deliver dead letters again, all or some. Returns how many.

        attempts: how many more deliveries a message has; by default as many as it was sent with.
        """
        wanted = self._dead()
        if ids is not None:
            wanted = msgspec.structs.replace(wanted, ids=validate.job_ids(ids))
        return self._app.store.jobs.operate(
            "requeue",
            wanted,
            validate.actor(actor),
            delay=validate.duration(delay, "delay"),
            attempts=None if attempts is None else validate.integer(attempts, "attempts", 1, 1000),
            reason=validate.reason(reason),
        )

    def purge(self, *, dead_only: bool = False, actor: str | None = None, reason: str = "") -> int:
        """Delete all messages that `stats().total` counts, or only the dead letters. Returns how many.

        Acknowledged messages and their history stay.
        """
        statuses = ("blocked", "scheduled", "ready", "running", "failed")
        wanted = self._dead() if dead_only else Criteria(status=statuses, queue=(self.name,), messages=True)
        return self._app.store.jobs.operate("purge", wanted, validate.actor(actor), reason=validate.reason(reason))

    def _dead(self) -> Criteria:
        return Criteria(status=("failed",), queue=(self.name,), messages=True)

    def pause(self, *, actor: str | None = None, reason: str = "") -> bool:
        """Stop all processes from claiming messages and jobs of this queue. False if it was paused already."""
        return self._operate_on_queue("pause", actor, reason)

    def resume(self, *, actor: str | None = None, reason: str = "") -> bool:
        """Undo `pause`. False if the queue was not paused."""
        return self._operate_on_queue("resume", actor, reason)

    def _operate_on_queue(self, action: Literal["pause", "resume"], actor: str | None, reason: str) -> bool:
        this = Criteria(queue=(self.name,))
        return bool(self._app.store.jobs.operate(action, this, validate.actor(actor), reason=validate.reason(reason)))

    astats, adead_letters, arequeue = in_thread(stats), in_thread(dead_letters), in_thread(requeue)
    apurge, apause, aresume = in_thread(purge), in_thread(pause), in_thread(resume)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"
