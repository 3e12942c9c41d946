"""Why an attempt failed: an error code, a detail, and a traceback that is stored once per fingerprint."""

import re
from collections.abc import Iterator
from types import CodeType, TracebackType

from msgspec import Struct

from .errors import BlobDamaged, BlobError, BlobMissing, InvalidInput, InvalidPayload, JobError

DETAIL_LIMIT = 500
TRACEBACK_LIMIT = 20_000
LINE_LIMIT = 2_000
_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,31}(:[A-Z0-9][A-Z0-9_.-]{0,63})?")

# The first class in the exception's MRO that is listed here decides.
BUILT_IN_CODES: dict[type[BaseException], str] = {
    TimeoutError: "TIMEOUT:OPERATION",
    ConnectionError: "DEPENDENCY:CONNECTION",
    InvalidInput: "INVALID_INPUT:VALUE",
    InvalidPayload: "INVALID_INPUT:PAYLOAD",
    ValueError: "INVALID_INPUT:VALUE",
    TypeError: "INVALID_INPUT:TYPE",
    LookupError: "INVALID_INPUT:LOOKUP",
    BlobMissing: "RESOURCE:BLOB_MISSING",
    BlobDamaged: "RESOURCE:BLOB_DAMAGED",
    BlobError: "RESOURCE:BLOB_STORE",
    UnicodeError: "INVALID_INPUT:ENCODING",
    ArithmeticError: "INVALID_INPUT:ARITHMETIC",
    FileNotFoundError: "RESOURCE:NOT_FOUND",
    PermissionError: "RESOURCE:PERMISSION",
    MemoryError: "RESOURCE:MEMORY",
    RecursionError: "RESOURCE:RECURSION",
    OSError: "RESOURCE:OS",
    ImportError: "INTERNAL:IMPORT",
    NotImplementedError: "INTERNAL:NOT_IMPLEMENTED",
    AssertionError: "INTERNAL:ASSERTION",
    BaseException: "INTERNAL:ERROR",
}


class Failure(Struct, frozen=True, gc=False):
    """The failure of one attempt."""

    code: str
    detail: str = ""
    fingerprint: str | None = None
    traceback: str | None = None


def check_code(code: object) -> str:
    if isinstance(code, str) and _CODE.fullmatch(code):
        return code
    raise InvalidInput(
        "an error code must be CATEGORY or CATEGORY:SUBCATEGORY in capitals, such as 'TIMEOUT' or "
        f"'DEPENDENCY:STRIPE', got {shorten(repr(code), 100)}"
    )


def shorten(text: str, limit: int = DETAIL_LIMIT) -> str:
    """Cut the text to `limit` characters and escape what cannot be stored: lone surrogates and NUL."""
    clean = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def describe(error: BaseException) -> str:
    """Return the exception as text, also if its own repr() raises."""
    try:
        return shorten(repr(error))
    except Exception:  # noqa: BLE001  user code
        return f"{type(error).__name__}, which cannot be converted to text"


class ErrorTable:
    """Maps exception types to error codes: the built-in ones, and those added with `app.classify`."""

    def __init__(self) -> None:
        self._codes = dict(BUILT_IN_CODES)

    def classify(self, exception_type: type[BaseException], code: str) -> None:
        if not (isinstance(exception_type, type) and issubclass(exception_type, BaseException)):
            raise InvalidInput(f"classify: exception_type must be an exception class, got {exception_type!r}")
        self._codes[exception_type] = check_code(code)

    def code_for(self, error: BaseException) -> str:
        if isinstance(error, JobError):
            code = str(getattr(error, "code", ""))  # a subclass may not call its parent's __init__
            return code if _CODE.fullmatch(code) else "INTERNAL:BAD_CODE"
        return next(self._codes[ancestor] for ancestor in type(error).__mro__ if ancestor in self._codes)

    def failure(self, error: BaseException) -> Failure:
        """Describe an exception, even if its `__str__` raises."""
        detail = getattr(error, "detail", "") if isinstance(error, JobError) else _text_of(error)
        return Failure(
            code=self.code_for(error),
            detail=shorten(str(detail)),
            fingerprint=_fingerprint(error),
            traceback=_render(error),
        )


def _text_of(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException as inner:  # noqa: BLE001  user code: __str__ may do anything
        return f"{name} (its __str__ raised {type(inner).__name__})"
    return f"{name}: {text}" if text else name


def _fingerprint(error: BaseException) -> str:
    """Return the same value for failures of the same type with the same stack, whatever their messages."""
    import hashlib  # imported here: needed only when something failed

    lines = [type(error).__qualname__]
    lines += [f"{code.co_filename}:{code.co_name}:{line}" for code, line in _frames(error.__traceback__)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).hexdigest()[:16]


def _frames(link: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while link is not None:
        yield link.tb_frame.f_code, link.tb_lineno
        link = link.tb_next


def _render(error: BaseException) -> str:
    """Return the traceback as text, without local variables."""
    import traceback

    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except BaseException:  # noqa: BLE001  user code: __str__ may do anything
        lines = [*traceback.format_tb(error.__traceback__), _text_of(error)]
    text = "".join(map(_cut_middle, lines))
    if len(text) > TRACEBACK_LIMIT:  # keep the end, which has the innermost frames
        text = "…" + text[-TRACEBACK_LIMIT + 1 :]
    return shorten(text, TRACEBACK_LIMIT)


def _cut_middle(line: str) -> str:
    """Shorten a long line, so that a long message does not push out the stack frames."""
    return line if len(line) <= LINE_LIMIT else f"{line[: LINE_LIMIT // 2]} … {line[-LINE_LIMIT // 2 :]}"
