"""From what a handler returned or raised to how the attempt is settled. Pure, but for the one who chooses a delay."""

import logging
from random import Random
from typing import Any

from ..clock import SECOND
from ..codec import encode_result
from ..errors import BlobMissing, HoldfastError, InvalidInput, InvalidPayload, PayloadTooLarge
from ..failure import ErrorTable, Failure, check_code, shorten
from ..model.job import Settlement
from ..model.outcome import Cancel, Fail, Outcome, Retry, Snooze, Then
from ..retry import MAX_DELAY_SECONDS, backoff
from .attempt import Attempt

log = logging.getLogger("holdfast.worker")
ASKED_FOR_RETRY = Failure("RETRY:REQUESTED", "the task asked to be tried again")
UNSPEAKABLE = Failure("INTERNAL:ERROR", "the handler raised something that cannot be described")


class OutcomeMapper:
    """Knows the app's error codes, and has the dice for the retry policies."""

    def __init__(self, errors: ErrorTable, random: Random) -> None:
        self._errors, self._random = errors, random

    def of_value(self, attempt: Attempt, value: Any) -> Settlement:
        if value is None:
            return Settlement(attempt.claimed.lease, "succeed", attempt.started_at, attempt.finished_at())
        if isinstance(value, Outcome):
            return self.of_outcome(attempt, value)
        try:
            result = encode_result(value).decode()
        except PayloadTooLarge as error:
            return self._failed(attempt, Failure("RESULT:TOO_LARGE", shorten(str(error))))
        except InvalidPayload as error:
            return self._failed(attempt, Failure("RESULT:NOT_JSON", shorten(str(error))))
        return Settlement(attempt.claimed.lease, "succeed", attempt.started_at, attempt.finished_at(), result=result)

    def success(self, attempt: Attempt, value: Any) -> Settlement:
        """For an attempt that completes itself, where anything else is an error that it gets to see."""
        if isinstance(value, Then):
            return self._settled(attempt, "succeed", then=attempt.handler.go_on_with(value))
        if isinstance(value, Outcome):
            raise InvalidInput(
                f"complete() is for a success, and {type(value).__name__} is none: raise it in the block, which "
                "undoes what was done there"
            )
        if value is None:
            return self._settled(attempt, "succeed")
        data = encode_result(value)
        attempt.handler.check_result(data)
        return self._settled(attempt, "succeed", result=data.decode())

    def of_outcome(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        match outcome:
            case Retry(after=None):
                return self.retry(attempt, ASKED_FOR_RETRY)
            case Retry(after=after):
                return self._settled(attempt, "retry", delay=_microseconds(after), failure=ASKED_FOR_RETRY)
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
        return self._failed(attempt, Failure("INTERNAL:BAD_OUTCOME", f"{type(outcome).__name__} is no known outcome"))

    def of_error(self, attempt: Attempt, error: BaseException) -> Settlement:
        try:
            if isinstance(error, Outcome):
                return self.of_outcome(attempt, error)
            return self.retry(attempt, self._errors.failure(error))
        except BaseException:  # noqa: BLE001  user code: an exception's class, text and attributes may do anything
            return self.retry(attempt, UNSPEAKABLE)

    def of_bad_payload(self, attempt: Attempt, error: Exception) -> Settlement:
        """It will not fit better next time, so it is not tried again."""
        try:
            detail = shorten(str(error))
        except BaseException:  # noqa: BLE001  user code: the payload's own type raised it
            detail = ""
        return self._failed(attempt, Failure("INVALID_INPUT:PAYLOAD", detail))

    def of_unreadable(self, attempt: Attempt, error: Exception) -> Settlement:
        """Its payload, which is kept by reference. One that is gone will not come back; anything else may pass."""
        if isinstance(error, BlobMissing):
            return self._failed(attempt, Failure(self._errors.code_for(error), shorten(str(error))))
        return self.retry(attempt, Failure("RESOURCE:BLOB_STORE", shorten(str(error))))

    def of_unkept(self, attempt: Attempt, settlement: Settlement, error: Exception) -> Settlement:
        """Its result, or the payload of what its chain goes on with, could not be put where large ones are kept."""
        detail = shorten(str(error))
        if not isinstance(error, PayloadTooLarge):
            return self.retry(attempt, Failure("RESOURCE:BLOB_STORE", detail))
        if settlement.then is not None:
            return self._failed(attempt, Failure("RESULT:BAD_CONTINUATION", detail))
        return self._failed(attempt, Failure("RESULT:TOO_LARGE", detail.replace("payload", "result")))

    def retry(self, attempt: Attempt, failure: Failure) -> Settlement:
        """By the task's policy. Attempts that were snoozed or interrupted do not count."""
        number = max(1, attempt.claimed.attempt - attempt.claimed.uncounted)
        try:
            seconds = attempt.handler.retry_policy(number, self._random)
        except Exception:  # user code
            log.exception("the retry policy of %s raised; backing off by default", attempt.handler.name)
            seconds = backoff()(number, self._random)
        return self._settled(attempt, "retry", delay=_microseconds(seconds), failure=failure)

    def _failed(self, attempt: Attempt, failure: Failure) -> Settlement:
        return self._settled(attempt, "fail", failure=failure)

    def _settled(self, attempt: Attempt, transition: Any, **how: Any) -> Settlement:
        return Settlement(attempt.claimed.lease, transition, attempt.started_at, attempt.finished_at(), **how)


def _microseconds(seconds: Any) -> int:
    """Of what a handler gave: anything that is no number from 0 to a year counts as the nearest one that is."""
    try:
        # In this order NaN becomes 0, too.
        return round(min(max(0.0, float(seconds)), MAX_DELAY_SECONDS) * SECOND)
    except OverflowError:
        return round(MAX_DELAY_SECONDS * SECOND)
    except (TypeError, ValueError):
        return 0
