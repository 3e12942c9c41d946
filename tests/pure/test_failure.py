"""Why an attempt failed: a code, a short detail, and a traceback per fingerprint."""

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, JobError
from holdfast.errors import InvalidArguments, InvalidInput, InvalidPayload, WaitTimeout
from holdfast.failure import DETAIL_LIMIT, TRACEBACK_LIMIT, ErrorTable, Failure, check_code, shorten


@pytest.fixture
def table() -> ErrorTable:
    return ErrorTable()


def caught(error: BaseException) -> BaseException:
    """The exception, as it is after it was raised here."""
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001  it is what we want
        return raised


# --- codes ---


class OwnTimeout(TimeoutError): ...


class OwnError(Exception): ...


BUILT_IN: list[tuple[BaseException, str]] = [
    (TimeoutError(), "TIMEOUT:OPERATION"),
    (OwnTimeout(), "TIMEOUT:OPERATION"),
    (WaitTimeout(), "TIMEOUT:OPERATION"),
    (ConnectionError(), "DEPENDENCY:CONNECTION"),
    (ConnectionRefusedError(), "DEPENDENCY:CONNECTION"),
    (BrokenPipeError(), "DEPENDENCY:CONNECTION"),
    (ValueError(), "INVALID_INPUT:VALUE"),
    (InvalidInput(), "INVALID_INPUT:VALUE"),
    (InvalidArguments(), "INVALID_INPUT:VALUE"),
    (InvalidPayload(), "INVALID_INPUT:PAYLOAD"),
    (TypeError(), "INVALID_INPUT:TYPE"),
    (KeyError("x"), "INVALID_INPUT:LOOKUP"),
    (IndexError(), "INVALID_INPUT:LOOKUP"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "INVALID_INPUT:ENCODING"),
    (json.JSONDecodeError("bad", "{", 0), "INVALID_INPUT:VALUE"),
    (ZeroDivisionError(), "INVALID_INPUT:ARITHMETIC"),
    (OverflowError(), "INVALID_INPUT:ARITHMETIC"),
    (FileNotFoundError(), "RESOURCE:NOT_FOUND"),
    (PermissionError(), "RESOURCE:PERMISSION"),
    (OSError(28, "No space left on device"), "RESOURCE:OS"),
    (MemoryError(), "RESOURCE:MEMORY"),
    (RecursionError(), "RESOURCE:RECURSION"),
    (ImportError(), "INTERNAL:IMPORT"),
    (ModuleNotFoundError(), "INTERNAL:IMPORT"),
    (NotImplementedError(), "INTERNAL:NOT_IMPLEMENTED"),
    (AssertionError(), "INTERNAL:ASSERTION"),
    (RuntimeError(), "INTERNAL:ERROR"),
    (OwnError(), "INTERNAL:ERROR"),
    (sqlite3.OperationalError(), "INTERNAL:ERROR"),
    (subprocess.CalledProcessError(1, "x"), "INTERNAL:ERROR"),
    (KeyboardInterrupt(), "INTERNAL:ERROR"),
    (SystemExit(1), "INTERNAL:ERROR"),
    (ExceptionGroup("several", [ValueError()]), "INTERNAL:ERROR"),
]


@pytest.mark.parametrize(("error", "code"), BUILT_IN, ids=[type(error).__name__ for error, _ in BUILT_IN])
def test_a_built_in_exception_has_its_code(table: ErrorTable, error: BaseException, code: str) -> None:
    assert table.code_for(error) == code
    assert check_code(code) == code


def test_the_categories_are_those_five() -> None:
    categories = {code.split(":")[0] for _, code in BUILT_IN}
    assert categories == {"TIMEOUT", "INVALID_INPUT", "RESOURCE", "DEPENDENCY", "INTERNAL"}


def test_a_job_error_brings_its_own_code_and_detail(table: ErrorTable) -> None:
    failure = table.failure(caught(JobError("DEPENDENCY:STRIPE", "503 from the API")))
    assert (failure.code, failure.detail) == ("DEPENDENCY:STRIPE", "503 from the API")


def test_a_job_error_says_what_it_carries() -> None:
    assert str(JobError("DEPENDENCY:STRIPE", "503")) == "DEPENDENCY:STRIPE: 503"
    assert str(JobError("TIMEOUT")) == "TIMEOUT"


@pytest.mark.parametrize("code", ["", "lower:case", "A:B:C", "A:", ":B", "A B", None, 5])
def test_a_job_error_with_a_bad_code_is_still_a_failure(table: ErrorTable, code: Any) -> None:
    failure = table.failure(caught(JobError(code, "detail")))
    assert (failure.code, failure.detail) == ("INTERNAL:BAD_CODE", "detail")


def test_a_job_error_made_without_its_parents_init_is_still_a_failure(table: ErrorTable) -> None:
    class Careless(JobError):
        def __init__(self) -> None:  # forgets super().__init__
            pass

    assert check_code(table.failure(caught(Careless())).code)


def test_classify_sets_the_code_of_a_type(table: ErrorTable) -> None:
    table.classify(OwnError, "DEPENDENCY:OWN")
    assert table.code_for(OwnError()) == "DEPENDENCY:OWN"


def test_classify_reaches_subclasses_until_one_is_classified_itself(table: ErrorTable) -> None:
    class Closer(OwnError): ...

    class Closest(Closer): ...

    table.classify(OwnError, "DEPENDENCY:OWN")
    assert table.code_for(Closest()) == "DEPENDENCY:OWN"
    table.classify(Closer, "DEPENDENCY:CLOSER")
    assert table.code_for(Closest()) == "DEPENDENCY:CLOSER"
    assert table.code_for(OwnError()) == "DEPENDENCY:OWN"


def test_classify_can_override_the_built_in_codes(table: ErrorTable) -> None:
    table.classify(KeyError, "INTERNAL:BUG")
    assert (table.code_for(KeyError()), table.code_for(IndexError())) == ("INTERNAL:BUG", "INVALID_INPUT:LOOKUP")


def test_each_app_has_its_own_codes(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "a.db") as one, Holdfast(tmp_path / "b.db") as other:
        one.classify(OwnError, "DEPENDENCY:OWN")
        assert one.error_table.code_for(OwnError()) == "DEPENDENCY:OWN"
        assert other.error_table.code_for(OwnError()) == "INTERNAL:ERROR"


@pytest.mark.parametrize("code", ["TIMEOUT", "A1_B:C.D-E_9", "DEPENDENCY:STRIPE", "X" * 32 + ":" + "Y" * 64])
def test_a_code_is_a_category_and_perhaps_a_subcategory(code: str) -> None:
    assert check_code(code) == code


@pytest.mark.parametrize(
    "code", ["", "timeout", "A:", ":A", "A:B:C", "A B", "1A", "X" * 33, "A:" + "Y" * 65, "A\n", "Ä", None, 7]
)
def test_a_bad_code_is_refused_by_classify(table: ErrorTable, code: Any) -> None:
    with pytest.raises(InvalidInput, match="CATEGORY:SUBCATEGORY"):
        table.classify(OwnError, code)


@pytest.mark.parametrize("thing", ["OwnError", int, OwnError(), None])
def test_only_an_exception_type_can_be_classified(table: ErrorTable, thing: Any) -> None:
    with pytest.raises(InvalidInput, match="exception class"):
        table.classify(thing, "INTERNAL:X")


# --- details ---


def test_a_detail_names_the_type_and_the_message(table: ErrorTable) -> None:
    assert table.failure(caught(ValueError("no such colour"))).detail == "ValueError: no such colour"
    assert table.failure(caught(OwnError())).detail == "OwnError"


@pytest.mark.parametrize("error", [ValueError("x" * 10_000), JobError("A:B", "x" * 10_000)])
def test_a_detail_has_at_most_500_characters(table: ErrorTable, error: BaseException) -> None:
    detail = table.failure(caught(error)).detail
    assert len(detail) == DETAIL_LIMIT == 500
    assert detail.endswith("x…")


def test_a_detail_of_exactly_500_characters_is_not_cut() -> None:
    assert shorten("ä" * 500) == "ä" * 500


@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "\udcff"])
def test_a_detail_can_always_be_stored(table: ErrorTable, text: str) -> None:
    for error in (ValueError(text), JobError("A:B", text)):
        failure = table.failure(caught(error))
        assert "\0" not in failure.detail
        failure.detail.encode()
        assert failure.traceback is not None
        failure.traceback.encode()


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this works")


class NoText(Exception):
    def __str__(self) -> Any:
        return 5


@pytest.mark.parametrize("error", [Hostile(), NoText()])
def test_an_exception_that_cannot_be_printed_is_still_a_failure(table: ErrorTable, error: BaseException) -> None:
    failure = table.failure(caught(error))
    assert (failure.code, failure.detail.startswith(type(error).__name__)) == ("INTERNAL:ERROR", True)
    assert failure.traceback


# --- fingerprints and tracebacks ---


def fail_with(text: str) -> BaseException:
    return caught(ValueError(text))


def test_the_same_place_and_type_is_the_same_fingerprint_whatever_the_message(table: ErrorTable) -> None:
    prints = {table.failure(fail_with(text)).fingerprint for text in ("order 1", "order 2")}
    assert len(prints) == 1


def test_another_place_is_another_fingerprint(table: ErrorTable) -> None:
    def here() -> None:
        raise ValueError

    def there() -> None:
        raise ValueError

    prints = set()
    for function in (here, there):
        with pytest.raises(ValueError) as info:
            function()
        prints.add(table.failure(info.value).fingerprint)
    assert len(prints) == 2


def test_another_type_is_another_fingerprint(table: ErrorTable) -> None:
    prints = {table.failure(caught(error)).fingerprint for error in (ValueError(), KeyError())}
    assert len(prints) == 2


def test_a_traceback_shows_frames_and_causes_but_no_locals(table: ErrorTable) -> None:
    def charge(card: str) -> None:
        try:
            raise KeyError("gateway")
        except KeyError as error:
            raise JobError("DEPENDENCY:STRIPE", "declined") from error

    with pytest.raises(JobError) as info:
        charge("4242-4242")
    text = table.failure(info.value).traceback
    assert text is not None
    assert "in charge" in text and "KeyError: 'gateway'" in text and "direct cause" in text
    assert "4242" not in text.replace('charge("4242-4242")', "")


def test_a_very_long_traceback_keeps_its_end(table: ErrorTable) -> None:
    text = table.failure(caught(ValueError("x" * 50_000 + "the end"))).traceback
    assert text is not None
    assert len(text) <= TRACEBACK_LIMIT
    assert text.rstrip().endswith("the end")


def test_an_error_that_was_never_raised_is_a_failure_too(table: ErrorTable) -> None:
    failure = table.failure(ValueError("made, not raised"))
    assert isinstance(failure, Failure)
    assert failure.traceback is not None and "made, not raised" in failure.traceback
