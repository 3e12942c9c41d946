"""Traces and metrics for OpenTelemetry, through its API. Needs the extra `holdfast[otel]`.

    from holdfast.contrib.otel import instrument
    instrument(app)

A job stores the W3C trace context of its enqueue, so that the trace continues in the process that runs it. The column
`trace` holds the traceparent, followed by the tracestate if there is one. The prefix `link` marks a job that was not
to run immediately: its attempts start traces of their own, linked to that context.
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
    METRICS,
    MOST_PLACES,
    RUN,
    WAIT,
    Metric,
    MetricsReader,
    Reading,
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
        "tracing needs opentelemetry-api: pip install 'holdfast[otel]'", name=missing.name
    ) from missing
Follow = Literal["auto", "child", "link"]
MAX_TRACESTATE = 512
LINK = "link "
FRESH_SECONDS = 0.5  # instruments share a reading for this long
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
    """Record a span for each enqueue and attempt, and export metrics of the database.

    metrics: False if another process exports the metrics of the same database.
    follow: "auto" makes the first attempt of a job that was to run immediately a child of the span that enqueued it,
        and links other attempts to that span; "child" makes all attempts children; "link" links all.
    tracer_provider, meter_provider: the global ones by default.
    most_places: the number of pairs of queue and task with their own series. The rest are counted as _others.
    """
    require_app(app)
    validate.flag(metrics, "metrics")
    require_places(most_places)
    if follow not in ("auto", "child", "link"):
        raise InvalidInput(f"follow must be 'auto', 'child' or 'link', got {validate.shown(follow)}")
    _require_provider(tracer_provider, "tracer_provider", "get_tracer")
    _require_provider(meter_provider, "meter_provider", "get_meter")
    if app._tracing is not None:
        raise InvalidInput("this app is already instrumented: call instrument(app) only once")
    instrumentation = Instrumentation(app, follow, tracer_provider, meter_provider)
    app._tracing = instrumentation
    if metrics:
        instrumentation.meter(most_places)
    return instrumentation


def _require_provider(value: Any, what: str, method: str) -> None:
    if value is not None and not callable(getattr(value, method, None)):
        raise InvalidInput(f"{what} must have a method {method}(), got {validate.shown(value)}")


class Instrumentation:
    """The instrumentation of an app, made by `instrument(app)`."""

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
        """Stop recording spans. The instruments of a meter cannot be removed; they report nothing any more."""
        if self._app._tracing is self:
            self._app._tracing = None

    # --- enqueue: called in place of the store ---

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
        return _trace_text(contexts.get_current(), deferred=False)

    @contextmanager
    def _sending(self, job: NewJob) -> Iterator[tuple[Span, NewJob]]:
        attributes = _attributes("send", job.queue, job.task)
        # Errors are recorded here: OpenTelemetry would put the text of the exception into the status.
        with self._tracer.start_as_current_span(
            f"send {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes, set_status_on_exception=False
        ) as span:
            try:
                yield span, replace(job, trace=_trace_text(contexts.get_current(), _is_deferred(job)))
            except BaseException as error:
                _set_error(span, type(error).__name__)
                raise

    # --- attempts ---

    def middleware(self) -> Callable[[Context], Any] | None:
        meters = self._meters or metrics.get_meter_provider()
        return self._around if self._traces() or _is_configured(meters) else None

    def _around(self, ctx: Context) -> Iterator[Any]:
        """Record a span around each attempt."""
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
            self._record_outcome(span, result)
        except GeneratorExit:  # the attempt was abandoned, and this is another thread
            span.end()
            raise
        except BaseException as error:
            self._record_error(span, error)
            self._leave(span, token)
            raise
        self._leave(span, token)

    def _measured(self, ctx: Context) -> Generator[None, Any, Any]:
        started = perf_counter()
        try:
            return (yield)
        finally:
            place = {"queue": ctx.queue, "task": ctx.task}
            self._run.record(perf_counter() - started, place)
            self._wait.record(ctx.waited, place)

    @contextmanager
    def process(self, message: Message[Any]) -> Iterator[Span]:
        """Record a span around the handling of a message: `with instrumentation.process(message):`."""
        queue, started = message._queue.name, perf_counter()
        attributes = _attributes("process", queue, None) | {
            "messaging.message.id": str(message.id),
            "holdfast.attempt": message.attempt,
        }
        span = self._begin(queue, attributes, message.trace, message.attempt)
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            yield span
        except BaseException as error:
            self._record_error(span, error)
            raise
        finally:
            self._run.record(perf_counter() - started, {"queue": queue, "task": ""})
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

    def _record_outcome(self, span: Span, outcome: Any) -> None:
        """Record the outcome that an attempt returned or raised."""
        if not isinstance(outcome, Outcome):
            return
        span.set_attribute("holdfast.outcome", type(outcome).__name__.lower())
        if isinstance(outcome, Then):
            outcome.trace = _trace_text(trace.set_span_in_context(span), deferred=False)
        elif isinstance(outcome, Fail):
            _set_error(span, outcome.code)

    def _record_error(self, span: Span, error: BaseException) -> None:
        if isinstance(error, Outcome):
            self._record_outcome(span, error)
            return
        with suppress(Exception):  # user-defined exceptions may fail in __str__ or attributes
            _set_error(span, self._app.error_table.code_for(error))
            span.record_exception(error)

    def _traces(self) -> bool:
        return _is_configured(self._tracers or trace.get_tracer_provider())

    # --- metrics ---

    def meter(self, most_places: int) -> None:
        """Create observable instruments for the metrics of the database."""
        shared = _SharedReading(MetricsReader(self._app, most_places), lambda: self._app._tracing is self)
        make = {"gauge": self._meter.create_observable_gauge, "counter": self._meter.create_observable_counter}
        for metric in METRICS:
            if metric.kind != "histogram":
                make[metric.kind](metric.name, [shared.callback(metric)], metric.unit, metric.help)

    def _histogram(self, metric: Metric) -> Any:
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=BOUNDS_SECONDS
        )


class _SharedReading:
    """One reading for all instruments of a collection."""

    def __init__(self, reader: MetricsReader, is_active: Callable[[], bool]) -> None:
        self._reader, self._is_active = reader, is_active
        self._reading: Reading | None = None
        self._read_at = 0.0

    def callback(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            if not self._is_active():
                return
            with suppress(StoreClosed):
                for labels, value in self._fresh().values[metric.name].items():
                    yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

        return observe

    def _fresh(self) -> Reading:
        if self._reading is None or perf_counter() - self._read_at > FRESH_SECONDS:
            self._reading, self._read_at = self._reader.read(), perf_counter()
        return self._reading


def _is_configured(provider: object) -> bool:
    """Return whether an SDK is set up. The providers of the API itself do nothing."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _attributes(operation: str, queue: str, task: str | None) -> dict[str, Any]:
    """Return attributes by OpenTelemetry's semantic conventions for messaging."""
    return {
        "messaging.system": "holdfast",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    } | ({} if task is None else {"holdfast.task": task})


def _set_error(span: Span, code: str) -> None:
    span.set_status(Status(StatusCode.ERROR, code))
    span.set_attribute("error.type", code)


def _is_deferred(job: NewJob) -> bool:
    return job.delay > 0 or job.run_at is not None or (job.links is not None and job.links.holds)


def _trace_text(context: TraceContext, deferred: bool) -> str | None:
    """Return a trace context as the text that is stored in a job."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    parent, state = carrier.get("traceparent"), carrier.get("tracestate", "")
    if parent is None:
        return None
    text = f"{parent} {state}" if 0 < len(state) <= MAX_TRACESTATE else parent
    return f"{LINK}{text}" if deferred else text


def _origin(text: str | None) -> tuple[TraceContext, bool]:
    """Return the stored context of a job (empty if unreadable), and whether the job was deferred."""
    if not isinstance(text, str):
        return TraceContext(), False
    parent, _, state = text.removeprefix(LINK).partition(" ")
    carrier = {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}
    return _propagator.extract(carrier, TraceContext()), text.startswith(LINK)
