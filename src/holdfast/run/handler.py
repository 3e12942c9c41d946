"""What the worker needs to know of a task. The app's tasks are such."""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from ..context import Context
from ..model import NewJob, Then
from ..retry import RetryPolicy

Kind = Literal["thread", "async", "process"]

Middleware = Callable[[Context], Any]
"""A generator function: what comes before its `yield` runs before the handler, what comes after, after it."""


class Handler(Protocol):
    name: str

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def retry_policy(self) -> RetryPolicy: ...

    @property
    def wants_context(self) -> bool: ...

    def check_result(self, data: bytes) -> None:
        """Raises InvalidInput where it is not of the type that the task is annotated to return."""
        ...

    def go_on_with(self, then: Then) -> NewJob:
        """What a chain goes on with. Raises HoldfastError where it cannot."""
        ...

    def bind(self, data: bytes, context: Context | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the function with. Raises ValueError where the payload does not fit."""
        ...
