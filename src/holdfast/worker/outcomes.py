"""Retry or fail: decide how an attempt is settled, from what its handler returned or raised.

- An exception (whatever its error code), a timeout or the death of a child process leads to a retry, after the delay
  of the retry policy. The task's `retry_on` and `give_up_on` name exceptions that fail the job at once.
- `Retry`, `Snooze`, `Cancel`, `Fail` and `Then` do what they say.
- A payload that does not fit the function is given back for workers with newer code, and fails after a time. One that
  is not JSON, and a result that is too large, not JSON or not of the annotated type, fail the job at once. None is
  such a result, too, if the annotation does not allow it.

A retry after the last attempt is a failure. The store enforces that (`store/settle.py`): its statement `retry`
requires `attempt < max_attempts`; otherwise it runs `fail`. Expired leases are decided in `claim.sql`.
The retry policy (`retry_policies.py`) computes the delay.
"""

import logging
from random import Random
from typing import Any

from ..clock import SECOND
from ..codec import encode_result, is_json
from ..errors import (
    BlobMissing,
    HoldfastError,
    InvalidContinuation,
    InvalidInput,
    InvalidPayload,
    InvalidResult,
    PayloadTooLarge,
)
from ..failure import ErrorTable, Failure, check_code, shorten
from ..model.job import Settlement
from ..model.outcome import Cancel, Fail, Outcome, Retry, Snooze, Then
from ..retry_policies import MAX_DELAY_SECONDS, backoff
from .attempt import Attempt, Handler

log = logging.getLogger("holdfast.worker")
RETRY_REQUESTED = Failure("RETRY:REQUESTED", "the task requested a retry")
FIRST_UNFIT_SECONDS = 1.0  # until a worker tries a payload again that does not fit; doubled each time
MAX_UNFIT_SECONDS = 60.0
INDESCRIBABLE = Failure("INTERNAL:ERROR", "the handler raised an exception that cannot be converted to text")


class OutcomeMapper:
    """Maps values and exceptions to settlements.

    errors: the error codes of the app. random: for the jitter of the retry policies.
    payload_timeout: how long a payload that does not fit is kept for newer code, in microseconds.
    """

    def __init__(self, errors: ErrorTable, random: Random, payload_timeout: int) -> None:
        self._errors, self._random, self._payload_timeout = errors, random, payload_timeout

    def for_value(self, attempt: Attempt, value: Any) -> Settlement:
        """Return the settlement for a value that the handler returned: an outcome, or the result."""
        if value is None and attempt.handler.allows_none:
            return Settlement(attempt.claimed.lease, "succeed", attempt.started_at, attempt.finished_at())
        if isinstance(value, Outcome):
            return self.for_outcome(attempt, value)
        try:
            result = _encode(attempt.handler, value)
        except InvalidResult as error:
            return self._failed(attempt, Failure(error.code, shorten(str(error))))
        return Settlement(attempt.claimed.lease, "succeed", attempt.started_at, attempt.finished_at(), result=result)

    def for_completion(self, attempt: Attempt, value: Any) -> Settlement:
        """Return the success that ctx.complete() stores. Raises HoldfastError if the value cannot be stored."""
        if isinstance(value, Then):
            return self._settled(attempt, "succeed", then=attempt.handler.go_on_with(value))
        if isinstance(value, Outcome):
            raise InvalidInput(
                f"ctx.complete() must be given a result or Then, got {type(value).__name__}: raise it in the block "
                "instead, which rolls back the transaction"
            )
        if value is None and attempt.handler.allows_none:
            return self._settled(attempt, "succeed")
        if value is None:
            raise InvalidResult(
                f"{attempt.handler.name} is annotated to return a result, and ctx.complete() was given none: pass it "
                "as ctx.complete(result=…), or set tx.result in the block",
                "RESULT:WRONG_TYPE",
            )
        return self._settled(attempt, "succeed", result=_encode(attempt.handler, value))

    def for_outcome(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        """Return the settlement for an outcome that the handler returned or raised."""
        match outcome:
            case Retry(after=None):
                return self.retry(attempt, RETRY_REQUESTED)
            case Retry(after=after):
                return self._settled(attempt, "retry", delay=_microseconds(after), failure=RETRY_REQUESTED)
            case Snooze(seconds=seconds):
                return self._settled(attempt, "snooze", delay=_microseconds(seconds))
            case Cancel(reason=reason):
                return self._settled(attempt, "stop", reason=shorten(str(reason)))
            case Fail(code=code, detail=detail):
                return self._failed(attempt, Failure(check_code(code), shorten(str(detail))))
            case Then():
                try:
                    return self._settled(attempt, "succeed", then=attempt.handler.go_on_with(outcome))
                except HoldfastError as error:
                    return self._failed(attempt, Failure("RESULT:BAD_CONTINUATION", shorten(str(error))))
        return self._failed(attempt, Failure("INTERNAL:BAD_OUTCOME", f"unknown outcome {type(outcome).__name__}"))

    def for_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        """Return the settlement for an exception of the handler: a retry, or the outcome that it raised."""
        try:
            if isinstance(error, Outcome):
                return self.for_outcome(attempt, error)
            if isinstance(error, InvalidContinuation):
                return self._failed(attempt, Failure("RESULT:BAD_CONTINUATION", shorten(str(error))))
            if isinstance(error, InvalidResult):
                return self._failed(attempt, Failure(error.code, shorten(str(error))))
            failure = self._errors.failure(error)
            return self.retry(attempt, failure) if attempt.handler.retries(error) else self._failed(attempt, failure)
        except BaseException:  # noqa: BLE001  user code: __str__ or a property of the exception may raise
            return self.retry(attempt, INDESCRIBABLE)

    def for_invalid_payload(self, attempt: Attempt, data: bytes, error: Exception) -> Settlement:
        """Return the settlement for a payload that does not fit the function: newer code may be able to read it.

        `delay` is for how long this worker leaves it alone. What is not JSON fails at once: no code can read it.
        """
        try:
            detail = shorten(str(error))
        except BaseException:  # noqa: BLE001  user code: a parameter type may have raised it
            detail = ""
        failure = Failure("INVALID_INPUT:PAYLOAD", detail)
        if not is_json(data):
            return self._failed(attempt, failure)
        seconds = min(FIRST_UNFIT_SECONDS * 2 ** min(attempt.claimed.uncounted, 10), MAX_UNFIT_SECONDS)
        delay = min(_microseconds(seconds), self._payload_timeout)
        return self._settled(attempt, "unfit", failure=failure, delay=delay, keep=self._payload_timeout)

    def not_started(self, attempt: Attempt) -> Settlement:
        """Give back an attempt whose handler was not called. It does not count."""
        return Settlement(attempt.claimed.lease, "give_back", None, attempt.finished_at())

    def for_unreadable_payload(self, attempt: Attempt, error: Exception) -> Settlement:
        """Return the settlement for a payload that cannot be read: a failure if its blob is missing, else a retry."""
        if isinstance(error, BlobMissing):
            return self._failed(attempt, Failure(self._errors.code_for(error), shorten(str(error))))
        return self.retry(attempt, Failure("RESOURCE:BLOB_STORE", shorten(str(error))))

    def for_unstored_result(self, attempt: Attempt, settlement: Settlement, error: Exception) -> Settlement:
        """Return the settlement for a large result, or payload of the next job, that the blob store did not take."""
        detail = shorten(str(error))
        if not isinstance(error, PayloadTooLarge):
            return self.retry(attempt, Failure("RESOURCE:BLOB_STORE", detail))
        if settlement.then is not None:
            return self._failed(attempt, Failure("RESULT:BAD_CONTINUATION", detail))
        return self._failed(attempt, Failure("RESULT:TOO_LARGE", detail.replace("payload", "result")))

    def retry(self, attempt: Attempt, failure: Failure) -> Settlement:
        """Return a retry after the delay of the task's policy. Snoozed and interrupted attempts do not count."""
        number = max(1, attempt.claimed.attempt - attempt.claimed.uncounted)
        try:
            seconds = attempt.handler.retry_policy(number, self._random)
        except Exception:  # user code
            log.exception(
                "the retry policy of %s raised an exception; using the default backoff", attempt.handler.name
            )
            seconds = backoff()(number, self._random)
        return self._settled(attempt, "retry", delay=_microseconds(seconds), failure=failure)

    def _failed(self, attempt: Attempt, failure: Failure) -> Settlement:
        return self._settled(attempt, "fail", failure=failure)

    def _settled(self, attempt: Attempt, transition: Any, **how: Any) -> Settlement:
        return Settlement(attempt.claimed.lease, transition, attempt.started_at, attempt.finished_at(), **how)


def _encode(handler: Handler, result: Any) -> str:
    """Return the result as JSON. Raises InvalidResult if it cannot be stored, or could not be read afterwards."""
    try:
        data = encode_result(result)
        handler.check_result(data)
    except PayloadTooLarge as error:
        raise InvalidResult(str(error), "RESULT:TOO_LARGE") from None
    except InvalidPayload as error:
        raise InvalidResult(str(error), "RESULT:NOT_JSON") from None
    except InvalidInput as error:
        raise InvalidResult(str(error), "RESULT:WRONG_TYPE") from None
    return data.decode()


def _microseconds(seconds: Any) -> int:
    """Convert a delay that a handler gave, limited to 0 to one year. What is not a number counts as 0."""
    try:
        # max() in this order also turns NaN into 0.
        return round(min(max(0.0, float(seconds)), MAX_DELAY_SECONDS) * SECOND)
    except OverflowError:
        return round(MAX_DELAY_SECONDS * SECOND)
    except (TypeError, ValueError):
        return 0
