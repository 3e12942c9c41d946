"""Run one attempt: bind the arguments, go through the middleware to the handler, and say how it is to be settled."""

import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from ..blobs import is_reference
from ..clock import Clock
from ..context import Completion, Context, ContextBackend
from ..errors import BlobError, BlobMissing, LeaseLost, PayloadTooLarge, StoreError, TransactionError
from ..model.job import LeaseRenewal, Settlement
from ..model.outcome import Then
from ..store.protocol import Store
from .attempt import Attempt, Middleware
from .outcomes import OutcomeMapper

log = logging.getLogger("holdfast.worker")
SURELY_SMALL = 256  # characters: below that nothing is put into the blob store


class Executor:
    def __init__(
        self,
        outcome_mapper: OutcomeMapper,
        clock: Clock,
        middleware: Sequence[Middleware],
        store: Store,
        backing: ContextBackend,
    ) -> None:
        self._outcome_mapper, self._clock = outcome_mapper, clock
        self._middleware, self._store, self._backing = middleware, store, backing

    def run(self, attempt: Attempt) -> Settlement:
        try:
            call = self._prepare(attempt)
            if isinstance(call, Settlement):
                return call
            # In a context of its own: what a handler sets in a ContextVar is not there for the next one.
            settlement = self._of_value(attempt, copy_context().run(call))
        except BaseException as error:  # noqa: BLE001  user code: whatever it raises is how this attempt ended
            settlement = self._of_error(attempt, error)
        if settlement.result is None and settlement.then is None:
            return settlement
        return self._keep_apart(attempt, settlement) if self._is_large(attempt, settlement) else settlement

    async def run_async(self, attempt: Attempt) -> Settlement:
        try:
            settlement = await self._run_async(attempt)
            if not self._is_large(attempt, settlement):
                return settlement
            return await self._backing.in_thread(partial(self._keep_apart, attempt, settlement))
        except BaseException as error:  # noqa: BLE001  a cancellation
            return self._of_error(attempt, error)

    async def _run_async(self, attempt: Attempt) -> Settlement:
        try:
            if attempt.claimed.args_blob is None:
                call = self._prepare(attempt)
            else:  # reading it would hold up the loop
                call = await self._backing.in_thread(partial(self._prepare, attempt))
            if isinstance(call, Settlement):
                return call
            return self._of_value(attempt, await call())
        except BaseException as error:  # noqa: BLE001  user code, and a cancellation
            return self._of_error(attempt, error)

    def _of_value(self, attempt: Attempt, value: Any) -> Settlement:
        if attempt.completed is None:
            return self._outcome_mapper.of_value(attempt, value)
        if value is not None:
            log.error(
                "%s %d returned %s after ctx.complete(), when it was too late: it is not stored%s. Pass it to "
                "ctx.complete(…), or set tx.result in the block",
                attempt.handler.name,
                attempt.claimed.id,
                "Then" if isinstance(value, Then) else "a result",
                ", and the chain does not go on" if isinstance(value, Then) else "",
            )
        return attempt.completed

    def _of_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        settlement = self._outcome_mapper.of_error(attempt, error)
        if attempt.completed is None:
            return settlement
        if isinstance(error, Then) and attempt.completed.then is not None:  # raised in the block, and stored with it
            return attempt.completed
        log.warning(
            "%s %d raised after ctx.complete(), and has succeeded all the same (%s)",
            attempt.handler.name,
            attempt.claimed.id,
            settlement.failure.code if settlement.failure is not None else type(error).__name__,
        )
        return attempt.completed

    def _is_large(self, attempt: Attempt, settlement: Settlement) -> bool:
        if settlement.result is None and settlement.then is None:
            return False
        size = len(settlement.result or "") if settlement.then is None else len(settlement.then.args)
        return attempt.completed is None and size > SURELY_SMALL

    def _keep_apart(self, attempt: Attempt, settlement: Settlement) -> Settlement:
        """Before it is settled with others, so that it fails alone if it cannot be kept."""
        try:
            return self._store.jobs.offload(settlement)
        except (BlobError, PayloadTooLarge) as error:
            return self._outcome_mapper.of_unkept(attempt, settlement, error)
        except (
            StoreError
        ):  # a full disk: the work is done, so it is settled when that has passed, in its row if need be
            return settlement

    @contextmanager
    def _complete(self, attempt: Attempt, result: Any) -> Iterator[Completion]:
        """A transaction in which the attempt settles itself. Its lease is looked at first, and by the settling."""
        if attempt.completed is not None:
            raise TransactionError("this attempt has completed already: ctx.complete() is a task's last step")
        claimed, raised = attempt.claimed, None
        lost = f"job {claimed.id} is not held by attempt {claimed.attempt} any more: nothing was stored"
        attempt.tell_completing(True)
        try:
            with self._backing.completion(result) as transaction:
                if not self._store.jobs.renew([LeaseRenewal(claimed.lease)], None, transaction):
                    raise LeaseLost(lost)
                with _without_await():
                    try:
                        yield transaction
                    except Then as then:  # it may be raised as well as returned
                        transaction.result = raised = then
                settlement = self._store.jobs.offload(self._outcome_mapper.success(attempt, transaction.result))
                if attempt.cancelled or not self._store.jobs.settle(settlement, transaction):
                    raise LeaseLost(lost)
            attempt.completed = settlement
        finally:
            attempt.tell_completing(False)
        if raised is not None:
            raise raised

    def _prepare(self, attempt: Attempt) -> Callable[[], Any] | Settlement:
        attempt.begin(self._clock)
        handler, claimed = attempt.handler, attempt.claimed
        wanted = handler.wants_context or self._middleware
        context = attempt.context(self._backing, partial(self._complete, attempt)) if wanted else None
        data = claimed.args
        try:
            if claimed.args_blob is not None and is_reference(data, claimed.args_blob):
                data = self._store.jobs.read_blob(claimed.args_blob)
            args, kwargs = handler.bind(data, context)
        except (BlobMissing, StoreError) as error:
            return self._outcome_mapper.of_unreadable(attempt, error)
        except Exception as error:  # noqa: BLE001  the types of the parameters may be the user's
            return self._outcome_mapper.of_bad_payload(attempt, error)
        call = partial(handler.function, *args, **kwargs) if args or kwargs else handler.function
        if context is None or not self._middleware:
            return call
        return partial(
            _through_async if handler.kind == "async" else _through, _Onion(self._middleware, context), call
        )


class _Onion(ExitStack):
    """The middleware around a handler: the first one is the outermost layer."""

    def __init__(self, middleware: Sequence[Middleware], context: Context) -> None:
        super().__init__()
        self._layers, self._context = middleware, context
        self.value: Any = None

    def __enter__(self) -> "_Onion":
        with ExitStack() as entered:  # if one raises, those before it are left
            for layer in self._layers:
                entered.push(self._enter(layer))
            self.push(entered.pop_all().__exit__)
        return self

    def _enter(self, layer: Middleware) -> Callable[..., bool]:
        steps: Generator[Any, Any, Any] = layer(self._context)
        next(steps)

        def leave(_type: Any, error: BaseException | None, _trace: Any) -> bool:
            try:
                if error is None:
                    steps.send(self.value)
                else:
                    steps.throw(error)
            except StopIteration:
                return error is not None  # it ended without raising: the error was dealt with
            except BaseException as raised:
                if raised is error:
                    return False
                raise
            raise RuntimeError(f"the middleware {layer!r} yielded more than once")

        return leave


def _through(onion: _Onion, call: Callable[[], Any]) -> Any:
    with onion:
        onion.value = call()
    return onion.value


async def _through_async(onion: _Onion, call: Callable[[], Any]) -> Any:
    with onion:
        onion.value = await call()
    return onion.value


@contextmanager
def _without_await() -> Iterator[None]:
    """A coroutine that awaits in the block would keep the others of its event loop from writing, and they would fail.
    So it fails itself, and does so each time."""
    asyncio = sys.modules.get("asyncio")  # which is not imported for nothing
    loop = None if asyncio is None else asyncio._get_running_loop()
    if loop is None:
        yield
        return
    went_on: list[bool] = []
    handle = loop.call_soon(went_on.append, True)
    try:
        yield
    finally:
        handle.cancel()
    if went_on:
        raise TransactionError(
            "a coroutine must not await inside ctx.complete(), since it holds the database: do that before, or use "
            "await ctx.acomplete(work)"
        )
