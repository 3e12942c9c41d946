"""A task's signature: bind, check and encode its arguments, and decode them and its result into the same types."""

import functools
import inspect
import types
import typing
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from ..codec import checker, decoder, encode
from ..context import Context
from ..errors import InvalidArguments, InvalidInput, InvalidPayload, InvalidTask, UndefinedAnnotation
from ..failure import shorten
from ..model.outcome import Outcome
from ..validate import suggest
from .options import EnqueueOptions

_EMPTY = inspect.Parameter.empty
_NO_RESULT = (None, types.NoneType, typing.NoReturn, typing.Never)


class Signature:
    """The parameters and the result of one task. A parameter annotated `Context` is not part of the payload."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self._task = task
        hints = _hints(function, task)
        try:
            self._whole = inspect.signature(function)
        except (TypeError, ValueError):
            raise InvalidTask(
                f"{task} must be a function with a signature: wrap it in a function of your own"
            ) from None
        parameters = list(self._whole.parameters.values())
        self.context_parameter = _context_parameter(parameters, hints)
        self._parameters = [one for one in parameters if one.name != self.context_parameter]
        _refuse_unnamed(self._parameters, task)
        self._by_position = [one.name for one in self._parameters if one.kind is not one.KEYWORD_ONLY]
        self._positional_only = [one for one in self._parameters if one.kind is one.POSITIONAL_ONLY]
        # Usually the Context can be passed by name, which is faster than binding a call.
        kinds = {one.name: one.kind for one in parameters}
        by_name = self.context_parameter is not None and inspect.Parameter.POSITIONAL_ONLY not in kinds.values()
        self.context_by_name = self.context_parameter if by_name else None
        self._has_defaults = any(one.default is not _EMPTY for one in self._parameters)
        self._struct = self._make_struct(hints)
        self._decode = self._make_decoder(self._struct)
        self._check = checker(self._struct)
        returned = _without_outcomes(hints.get("return", Any))
        # A task that returns nothing may still get a result, from ctx.complete(…) or app.jobs.complete(…).
        self.decode_result = self._make_decoder(Any if returned in _NO_RESULT else returned)

    @functools.cached_property
    def allows_none(self) -> bool:
        """Whether None is a result of the annotated type."""
        try:
            return self.decode_result(b"null") is None
        except ValueError:  # msgspec's ValidationError is one
            return False

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Bind the arguments, check them against the annotations, and return them as a JSON object."""
        try:
            named = self._by_name(args, kwargs)
            bound = self._struct(**named)
        except TypeError as error:
            raise InvalidArguments(f"{self._task}: {self._explain(args, kwargs, error)}") from None
        try:
            data = encode(bound)
            self._check(named)
            self._decode(data)
        except InvalidPayload as error:
            raise type(error)(f"{self._task}: {error}") from error.__cause__
        except ValueError as error:  # msgspec's ValidationError is one
            raise InvalidArguments(f"{self._task}: {_wrong_type(str(error))}") from None
        return data.decode()

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the function with. Raises msgspec.DecodeError (or its ValidationError)."""
        if data == b"{}" and not self._parameters:
            return (), {}
        values = asdict(self._decode(data))
        if self._has_defaults:
            values = {name: value for name, value in values.items() if value is not UNSET}
        if not self._positional_only:
            return (), values
        # A positional argument in the middle cannot be left out: its default is passed instead.
        return tuple(values.pop(one.name, one.default) for one in self._positional_only), values

    def check_result(self, data: bytes) -> None:
        """Raise InvalidInput if the result cannot be decoded as the annotated type."""
        try:
            self.decode_result(data)
        except ValueError as error:  # msgspec's ValidationError is one
            raise InvalidInput(f"{self._task}: the result has the wrong type: {shorten(str(error))}") from None

    def with_context(self, context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Return a call of the function with its Context filled in, unless the caller passed one."""
        name = self.context_parameter
        assert name is not None
        given = dict(kwargs)
        filled = given.pop(name, context)
        bound = inspect.Signature(self._parameters).bind(*args, **given)
        arguments = {**bound.arguments, name: filled}
        ordered = {one: arguments[one] for one in self._whole.parameters if one in arguments}
        return inspect.BoundArguments(self._whole, OrderedDict(ordered))

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args:
            return kwargs
        if len(args) > len(self._by_position):
            raise TypeError("too many positional arguments")
        named = dict(zip(self._by_position, args, strict=False))
        if named.keys() & kwargs.keys():
            raise TypeError("an argument was given twice")
        return named | kwargs

    def _explain(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> str:
        """Say what is wrong with a call, in the words of `inspect`."""
        names = [one.name for one in self._parameters]
        unknown = next((name for name in kwargs if isinstance(name, str) and name not in names), None)
        if unknown in EnqueueOptions.__annotations__:
            return f"unknown argument {unknown!r}: pass options with {self._task}.using({unknown}=…).enqueue(…)"
        if unknown is not None and names:  # first, since a misspelled one is missing as well
            return str(suggest(unknown, names, "argument"))
        try:
            inspect.Signature(self._parameters).bind(*args, **kwargs)
        except TypeError as found:
            return f"{found}. Its parameters are {inspect.Signature(self._parameters)}"
        return str(error)

    def _make_struct(self, hints: dict[str, Any]) -> type[Struct]:
        fields: list[Any] = []
        for parameter in self._parameters:
            hint = hints.get(parameter.name, Any)
            if hint is object:  # msgspec does not allow it in a union
                hint = Any
            if parameter.default is _EMPTY:
                fields.append((parameter.name, hint))
            else:  # an argument that was left out is not stored: the function's own default applies when it runs
                fields.append((parameter.name, hint | UnsetType if hint is not Any else Any, UNSET))
        try:
            return msgspec.defstruct(self._task, fields, kw_only=True, forbid_unknown_fields=True)
        except TypeError as error:
            raise InvalidTask(f"{self._task} has a parameter that cannot be stored as JSON: {error}") from None

    def _make_decoder(self, wanted: Any) -> Callable[[bytes], Any]:
        try:
            return decoder(wanted)
        except TypeError as error:
            raise InvalidTask(
                f"{self._task} has an annotation that cannot be decoded from JSON: {error}. "
                "Use types that msgspec supports, or leave the annotation out"
            ) from None


def _wrong_type(problem: str) -> str:
    """Name the argument: msgspec ends its message with the path, as in "Expected `str`, got `int` - at `$.to`"."""
    what, _, path = problem.rpartition(" - at `$.")
    if not what:
        return f"an argument has the wrong type: {shorten(problem)}"
    return f"argument {shorten(path.rstrip('`'), 100)!r} has the wrong type: {shorten(what[0].lower() + what[1:])}"


def _hints(function: Callable[..., Any], task: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UndefinedAnnotation(
            f"{task} has an annotation that is not defined: {error}. Import it at run time, not under TYPE_CHECKING"
        ) from None


def _without_outcomes(hint: Any) -> Any:
    """Return the type of the result: of `str | Retry` it is `str`."""
    if isinstance(hint, type) and issubclass(hint, Outcome):
        return None
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        left = [one for one in typing.get_args(hint) if not (isinstance(one, type) and issubclass(one, Outcome))]
        return typing.Union[tuple(left)] if left else None  # noqa: UP007  made at run time
    return hint


def _context_parameter(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> str | None:
    return next((one.name for one in parameters if hints.get(one.name) is Context), None)


def _refuse_unnamed(parameters: list[inspect.Parameter], task: str) -> None:
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidTask(
                f"{task} has the parameter {parameter}: the parameters of a task must have names, since arguments "
                "are stored as a JSON object. Use a list or a dict instead"
            )
