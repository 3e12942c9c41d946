"""Run one attempt: decode the arguments, call the handler inside its middleware, and return the settlement."""

import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
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
MAX_INLINE_CHARACTERS = 256  # a shorter result never goes to the blob store


class Executor:
    """Runs attempts in the calling thread or on its event loop. Its methods return a settlement and never raise."""

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
            if not attempt.may_start():
                return self._outcome_mapper.not_started(attempt)
            # In a copy of the context: a ContextVar that one handler sets must not leak into the next.
            settlement = self._map_value(attempt, copy_context().run(call))
        except BaseException as error:  # noqa: BLE001  user code may raise anything
            settlement = self._map_error(attempt, error)
        if settlement.result is None and settlement.then is None:
            return settlement
        return self._offload(attempt, settlement) if self._is_large(attempt, settlement) else settlement

    async def run_async(self, attempt: Attempt) -> Settlement:
        try:
            settlement = await self._run_async(attempt)
            if not self._is_large(attempt, settlement):
                return settlement
            return await self._backing.in_thread(partial(self._offload, attempt, settlement))
        except BaseException as error:  # noqa: BLE001  a cancellation
            return self._map_error(attempt, error)

    async def _run_async(self, attempt: Attempt) -> Settlement:
        try:
            if attempt.claimed.args_blob is None:
                call = self._prepare(attempt)
            else:  # reading the blob would block the loop
                call = await self._backing.in_thread(partial(self._prepare, attempt))
            if isinstance(call, Settlement):
                return call
            if not attempt.may_start():
                return self._outcome_mapper.not_started(attempt)
            return self._map_value(attempt, await call())
        except BaseException as error:  # noqa: BLE001  user code, and a cancellation
            return self._map_error(attempt, error)

    def _map_value(self, attempt: Attempt, value: Any) -> Settlement:
        if attempt.completed is None:
            return self._outcome_mapper.for_value(attempt, value)
        if value is not None:
            log.error(
                "%s %d returned %s after ctx.complete(), which is not stored%s: pass it to ctx.complete(…), or set "
                "tx.result in the block",
                attempt.handler.name,
                attempt.claimed.id,
                "Then" if isinstance(value, Then) else "a result",
                ", so the chain does not continue" if isinstance(value, Then) else "",
            )
        return attempt.completed

    def _map_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        settlement = self._outcome_mapper.for_error(attempt, error)
        if attempt.completed is None:
            return settlement
        if isinstance(error, Then) and attempt.completed.then is not None:  # raised in the block and stored by it
            return attempt.completed
        log.warning(
            "%s %d raised %s after ctx.complete(); the job has succeeded",
            attempt.handler.name,
            attempt.claimed.id,
            settlement.failure.code if settlement.failure is not None else type(error).__name__,
        )
        return attempt.completed

    def _is_large(self, attempt: Attempt, settlement: Settlement) -> bool:
        if settlement.result is None and settlement.then is None:
            return False
        size = len(settlement.result or "") if settlement.then is None else len(settlement.then.args)
        return attempt.completed is None and size > MAX_INLINE_CHARACTERS

    def _offload(self, attempt: Attempt, settlement: Settlement) -> Settlement:
        """Move a large result to the blob store. Done before the attempt joins a batch, so that only it can fail."""
        try:
            return self._store.jobs.offload(settlement)
        except (BlobError, PayloadTooLarge) as error:
            return self._outcome_mapper.for_unstored_result(attempt, settlement, error)
        except StoreError:  # the disk may be full: settle with the result in the row, once it can be written
            return settlement

    @contextmanager
    def _complete(self, attempt: Attempt, result: Any, conn: Any) -> Iterator[Completion]:
        """Open the transaction of ctx.complete(). The lease is checked at the start and when the job is settled."""
        if attempt.completed is not None:
            raise TransactionError(
                "this attempt has already completed: call ctx.complete() once, as the last step of the task"
            )
        claimed, raised = attempt.claimed, None
        lost = f"attempt {claimed.attempt} of job {claimed.id} has lost its lease: nothing was stored"
        attempt.set_completing(True)
        try:
            with self._backing.completion(result, conn) as transaction:
                if not self._store.jobs.renew([LeaseRenewal(claimed.lease)], None, transaction):
                    raise LeaseLost(lost)
                with _forbid_await() if conn is None else nullcontext():
                    try:
                        yield transaction
                    except Then as then:  # a handler may raise Then instead of returning it
                        transaction.result = raised = then
                settlement = self._outcome_mapper.for_completion(attempt, transaction.result)
                settlement = self._store.jobs.offload(attempt.with_progress(settlement))
                if attempt.cancelled or not self._store.jobs.settle(settlement, transaction):
                    raise LeaseLost(lost)
            attempt.completed = settlement
        finally:
            attempt.set_completing(False)
        if raised is not None:
            raise raised

    def _prepare(self, attempt: Attempt) -> Callable[[], Any] | Settlement:
        """Return the handler call, or a settlement if the payload cannot be read or does not fit."""
        attempt.start(self._clock)
        handler, claimed = attempt.handler, attempt.claimed
        wanted = handler.wants_context or self._middleware
        context = attempt.context(self._backing, partial(self._complete, attempt)) if wanted else None
        data = claimed.args
        try:
            if claimed.args_blob is not None and is_reference(data, claimed.args_blob):
                data = self._store.jobs.read_blob(claimed.args_blob)
            args, kwargs = handler.bind(data, context)
        except (BlobMissing, StoreError) as error:
            return self._outcome_mapper.for_unreadable_payload(attempt, error)
        except Exception as error:  # noqa: BLE001  parameter types may be user code
            return self._outcome_mapper.for_invalid_payload(attempt, data, error)
        call = partial(handler.function, *args, **kwargs) if args or kwargs else handler.function
        if context is None or not self._middleware:
            return call
        stack = _MiddlewareStack(self._middleware, context)
        return partial(_await_in_stack if handler.kind == "async" else _call_in_stack, stack, call)


class _MiddlewareStack(ExitStack):
    """The middleware around a handler. The first one is the outermost."""

    def __init__(self, middleware: Sequence[Middleware], context: Context) -> None:
        super().__init__()
        self._layers, self._context = middleware, context
        self.value: Any = None

    def __enter__(self) -> "_MiddlewareStack":
        with ExitStack() as entered:  # if one raises, exit the ones before it
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
                return error is not None  # the middleware handled the error
            except BaseException as raised:
                if raised is error:
                    return False
                raise
            raise RuntimeError(f"middleware must yield once, and {layer!r} yielded again")

        return leave


def _call_in_stack(stack: _MiddlewareStack, call: Callable[[], Any]) -> Any:
    with stack:
        stack.value = call()
    return stack.value


async def _await_in_stack(stack: _MiddlewareStack, call: Callable[[], Any]) -> Any:
    with stack:
        stack.value = await call()
    return stack.value


@contextmanager
def _forbid_await() -> Iterator[None]:
    """Raise TransactionError if a coroutine awaits in the block.

    The other coroutines of its event loop could not write until it ends, and would fail. Detecting this every time
    makes the mistake visible in development.
    """
    asyncio = sys.modules.get("asyncio")  # not imported unless the program uses it
    loop = None if asyncio is None else asyncio._get_running_loop()
    if loop is None:
        yield
        return
    loop_ran: list[bool] = []
    handle = loop.call_soon(loop_ran.append, True)
    try:
        yield
    finally:
        handle.cancel()
    if loop_ran:
        raise TransactionError(
            "a coroutine must not await inside ctx.complete(), which holds the write lock: await before it, and use "
            "async with ctx.acomplete()"
        )
