"""Run one attempt: bind the arguments, go through the middleware to the handler, and say how it is to be settled."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any

from ..clock import Clock
from ..context import Context
from ..model import Settlement
from .attempt import Attempt
from .handler import Middleware
from .outcome import Settler


class Executor:
    def __init__(
        self,
        settler: Settler,
        clock: Clock,
        middleware: Sequence[Middleware],
        find_job: Callable[[int], Any],
    ) -> None:
        self._settler, self._clock = settler, clock
        self._middleware, self._find_job = middleware, find_job

    def run(self, attempt: Attempt) -> Settlement:
        try:
            call = self._prepare(attempt)
            if isinstance(call, Settlement):
                return call
            # In a context of its own: what a handler sets in a ContextVar is not there for the next one.
            return self._settler.of_value(attempt, copy_context().run(call))
        except BaseException as error:  # noqa: BLE001  user code: whatever it raises is how this attempt ended
            return self._settler.of_error(attempt, error)

    async def run_async(self, attempt: Attempt) -> Settlement:
        try:
            call = self._prepare(attempt)
            if isinstance(call, Settlement):
                return call
            return self._settler.of_value(attempt, await call())
        except BaseException as error:  # noqa: BLE001  user code, and a cancellation
            return self._settler.of_error(attempt, error)

    def _prepare(self, attempt: Attempt) -> Callable[[], Any] | Settlement:
        attempt.begin(self._clock)
        handler = attempt.handler
        context = attempt.context(self._find_job) if handler.wants_context or self._middleware else None
        try:
            args, kwargs = handler.bind(attempt.claimed.args, context)
        except Exception as error:  # noqa: BLE001  the types of the parameters may be the user's
            return self._settler.of_bad_payload(attempt, error)
        call = partial(handler.function, *args, **kwargs)
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
