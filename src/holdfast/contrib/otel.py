"""Traces and metrics for OpenTelemetry, by its API alone: the extra `holdfast[otel]`.

    from holdfast.contrib.otel import instrument
    instrument(app)

A job keeps where it was enqueued, as the W3C traceparent, so that a trace goes on in the process that runs it. The
text in the column `trace` is the traceparent, then the tracestate if there is one; `link` before it says that the
job was not to run at once, so that its attempts have traces of their own, with a link.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any, Literal

from msgspec.structs import replace

from .. import __version__, validate
from ..app.queue import Message
from ..context import Context
from ..errors import InvalidInput, StoreClosed
from ..model.job import Inserted, NewJob
from ..model.outcome import Fail, Outcome, Then
from ..supervisor import Holdfast
from .metrics import (
    BOUNDS_SECONDS,
    MEASURES,
    MOST_PLACES,
    RUN,
    WAIT,
    Measure,
    Measurement,
    MetricsReader,
    require_app,
    require_places,
)

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "tracing needs the API of OpenTelemetry: pip install 'holdfast[otel]'", name=missing.name
    ) from missing
Follow = Literal["auto", "child", "link"]
LONGEST_STATE = 512
LINK = "link "
FRESH_SECONDS = 0.5  # for so long, what was read serves all instruments
_propagator = TraceContextTextMapPropagator()


def instrument(
    app: Holdfast,
    *,
    metrics: bool = True,
    follow: Follow = "auto",
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    most_places: int = MOST_PLACES,
) -> Instrumentation:
    """Make spans of what the app enqueues and runs, and meter its database.

    metrics: False where another process of the same database does it.
    follow: "auto" makes an attempt part of the trace that enqueued it, if it is the first and the job was to run at
        once, and links it otherwise; "child" makes all attempts part of that trace; "link" none.
    tracer_provider, meter_provider: by default the global ones.
    most_places: so many pairs of queue and task are metered apart, the rest together.
    """
    require_app(app)
    validate.flag(metrics, "metrics")
    require_places(most_places)
    if follow not in ("auto", "child", "link"):
        raise InvalidInput(f"follow is 'auto', 'child' or 'link', not {validate.shown(follow)}")
    _require_provider(tracer_provider, "tracer_provider", "get_tracer")
    _require_provider(meter_provider, "meter_provider", "get_meter")
    if app._tracing is not None:
        raise InvalidInput("this app is instrumented already: call instrument(app) once")
    made = Instrumentation(app, follow, tracer_provider, meter_provider)
    app._tracing = made
    if metrics:
        made.meter(most_places)
    return made


def _require_provider(value: Any, what: str, method: str) -> None:
    if value is not None and not callable(getattr(value, method, None)):
        raise InvalidInput(f"{what} has a method {method}, and {validate.shown(value)} has none")


class Instrumentation:
    """What `instrument(app)` gives."""

    def __init__(
        self, app: Holdfast, follow: Follow, tracers: TracerProvider | None, meters: MeterProvider | None
    ) -> None:
        self._app, self._follow = app, follow
        self._tracers, self._meters = tracers, meters
        self._tracer = trace.get_tracer("holdfast", __version__, tracers)
        self._meter = metrics.get_meter("holdfast", __version__, meters)
        self._run = self._histogram(RUN)
        self._wait = self._histogram(WAIT)

    def undo(self) -> None:
        """No more spans. Instruments of a meter cannot be taken back; they tell nothing any more."""
        if self._app._tracing is self:
            self._app._tracing = None

    # --- where something is enqueued: it stands in for the store ---

    def insert(self, job: NewJob, conn: Any = None) -> Inserted:
        store = self._app.store
        if not self._traces():
            return store.jobs.insert(job, conn)
        with self._sending(job) as (span, traced):
            inserted = store.jobs.insert(traced, conn)
            span.set_attribute("messaging.message.id", str(inserted.id))
            if inserted.existing is not None:
                span.set_attribute("holdfast.deduplicated", True)
        return inserted

    def insert_many(self, like: NewJob, payloads: Iterable[str], conn: Any = None) -> list[int]:
        store = self._app.store
        if not self._traces():
            return store.jobs.insert_many(like, payloads, conn)
        with self._sending(like) as (span, traced):
            ids = store.jobs.insert_many(traced, payloads, conn)
            span.set_attribute("messaging.batch.message_count", len(ids))
        return ids

    def current(self) -> str | None:
        return _carried(contexts.get_current(), deferred=False)

    @contextmanager
    def _sending(self, job: NewJob) -> Iterator[tuple[Span, NewJob]]:
        attributes = _attributes("send", job.queue, job.task)
        # The errors of an enqueue are noted here: OpenTelemetry would note the text of any of them as the status.
        with self._tracer.start_as_current_span(
            f"send {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes, set_status_on_exception=False
        ) as span:
            try:
                yield span, replace(job, trace=_carried(contexts.get_current(), _is_deferred(job)))
            except BaseException as error:
                _mark(span, type(error).__name__)
                raise

    # --- where something runs ---

    def middleware(self) -> Callable[[Context], Any] | None:
        meters = self._meters or metrics.get_meter_provider()
        return self._around if self._traces() or _is_there(meters) else None

    def _around(self, ctx: Context) -> Iterator[Any]:
        """A span around each attempt."""
        if not self._traces():
            yield from self._measured(ctx)
            return
        attributes = _attributes("process", ctx.queue, ctx.task) | {
            "messaging.message.id": str(ctx.job_id),
            "holdfast.attempt": ctx.attempt,
            "holdfast.max_attempts": ctx.max_attempts,
        }
        span = self._begin(ctx.queue, attributes, ctx.trace, ctx.attempt)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            result = yield from self._measured(ctx)
            self._note_outcome(span, result)
        except GeneratorExit:  # it was left behind, and this is some other thread
            span.end()
            raise
        except BaseException as error:
            self._note_error(span, error)
            self._leave(span, token)
            raise
        self._leave(span, token)

    def _measured(self, ctx: Context) -> Generator[None, Any, Any]:
        began = perf_counter()
        try:
            return (yield)
        finally:
            place = {"queue": ctx.queue, "task": ctx.task}
            self._run.record(perf_counter() - began, place)
            self._wait.record(ctx.waited, place)

    @contextmanager
    def process(self, message: Message[Any]) -> Iterator[Span]:
        """`with instrumentation.process(message):` is the span in which you handle a message."""
        queue, began = message._queue.name, perf_counter()
        attributes = _attributes("process", queue, None) | {
            "messaging.message.id": str(message.id),
            "holdfast.attempt": message.attempt,
        }
        span = self._begin(queue, attributes, message.trace, message.attempt)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield span
        except BaseException as error:
            self._note_error(span, error)
            raise
        finally:
            self._run.record(perf_counter() - began, {"queue": queue, "task": ""})
            self._leave(span, token)

    def _begin(self, queue: str, attributes: dict[str, Any], text: str | None, attempt: int) -> Span:
        origin, deferred = _origin(text)
        is_child = self._follow == "child" or (self._follow == "auto" and not deferred and attempt == 1)
        found = trace.get_current_span(origin).get_span_context()
        return self._tracer.start_span(
            f"process {queue}",
            context=origin if is_child else TraceContext(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(found)] if found.is_valid and not is_child else None,
        )

    def _leave(self, span: Span, token: Any) -> None:
        contexts.detach(token)
        span.end()

    def _note_outcome(self, span: Span, outcome: Any) -> None:
        """What an attempt returned; or raised, which means the same."""
        if not isinstance(outcome, Outcome):
            return
        span.set_attribute("holdfast.outcome", type(outcome).__name__.lower())
        if isinstance(outcome, Then):
            outcome.trace = _carried(trace.set_span_in_context(span), deferred=False)
        elif isinstance(outcome, Fail):
            _mark(span, outcome.code)

    def _note_error(self, span: Span, error: BaseException) -> None:
        if isinstance(error, Outcome):
            self._note_outcome(span, error)
            return
        with suppress(Exception):  # an exception's class, text and attributes are the user's, and may do anything
            _mark(span, self._app.error_table.code_for(error))
            span.record_exception(error)

    def _traces(self) -> bool:
        return _is_there(self._tracers or trace.get_tracer_provider())

    # --- metrics ---

    def meter(self, most_places: int) -> None:
        """Of the database: all that is counted there, read when the meter is."""
        shared = _Shared(self._app, MetricsReader(self._app, most_places), lambda: self._app._tracing is self)
        make = {"gauge": self._meter.create_observable_gauge, "counter": self._meter.create_observable_counter}
        for measure in MEASURES:
            if measure.kind != "histogram":
                make[measure.kind](measure.name, [shared.callback(measure)], measure.unit, measure.help)

    def _histogram(self, measure: Measure) -> Any:
        return self._meter.create_histogram(
            measure.name, measure.unit, measure.help, explicit_bucket_boundaries_advisory=BOUNDS_SECONDS
        )


class _Shared:
    """One reading for all instruments of a collection."""

    def __init__(self, app: Holdfast, reader: MetricsReader, is_wanted: Callable[[], bool]) -> None:
        self._app, self._reader, self._is_wanted = app, reader, is_wanted
        self._reading: Measurement | None = None
        self._read_at = 0.0

    def callback(self, measure: Measure) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            if not self._is_wanted():
                return
            with suppress(StoreClosed):  # then there is nothing to tell any more
                for labels, value in self._fresh().values[measure.name].items():
                    yield Observation(value, dict(zip(measure.labels, labels, strict=True)))

        return observe

    def _fresh(self) -> Measurement:
        if self._reading is None or perf_counter() - self._read_at > FRESH_SECONDS:
            self._reading, self._read_at = self._reader.read(), perf_counter()
        return self._reading


def _is_there(provider: object) -> bool:
    """Whether somebody listens: what the API itself provides does nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _attributes(operation: str, queue: str, task: str | None) -> dict[str, Any]:
    """As OpenTelemetry's conventions for messaging have them."""
    return {
        "messaging.system": "holdfast",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    } | ({} if task is None else {"holdfast.task": task})


def _mark(span: Span, code: str) -> None:
    span.set_status(Status(StatusCode.ERROR, code))
    span.set_attribute("error.type", code)


def _is_deferred(job: NewJob) -> bool:
    return job.delay > 0 or job.run_at is not None or (job.links is not None and job.links.holds)


def _carried(context: TraceContext, deferred: bool) -> str | None:
    """As it is kept in a job."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    parent, state = carrier.get("traceparent"), carrier.get("tracestate", "")
    if parent is None:
        return None
    kept = f"{parent} {state}" if 0 < len(state) <= LONGEST_STATE else parent
    return f"{LINK}{kept}" if deferred else kept


def _origin(text: str | None) -> tuple[TraceContext, bool]:
    """Where a job comes from, and whether it was not to run at once. What cannot be read comes from nowhere."""
    if not isinstance(text, str):
        return TraceContext(), False
    parent, _, state = text.removeprefix(LINK).partition(" ")
    carrier = {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}
    return _propagator.extract(carrier, TraceContext()), text.startswith(LINK)
