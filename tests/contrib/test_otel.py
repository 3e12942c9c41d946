"""OpenTelemetry: spans of enqueues and attempts, related across processes and retries."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze, Then, group
from holdfast.contrib.otel import instrument
from holdfast.testing import FakeClock
from support.running_worker import drain
from support.spans import Spans, attributes, is_child, is_linked, kept, nothing

# --- from the producer to the worker --------------------------------------------------------------


def test_an_attempt_is_part_of_the_trace_that_enqueued_it(app: Holdfast, spans: Spans, traced: Any, url: str) -> None:
    @app.task(queue="mail", max_attempts=3)
    def send(to: str) -> None:
        with spans.tracer.start_as_current_span("smtp"):
            pass

    with spans.tracer.start_as_current_span("request"):
        job = send.enqueue("ada@example.org")
    drain(app)

    request, sent, processed, inner = map(spans.one, ["request", "send mail", "process mail", "smtp"])
    assert is_child(sent, request) and is_child(processed, sent) and is_child(inner, processed)
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {"messaging.system": "holdfast", "messaging.destination.name": "mail", "holdfast.task": "send"}
    assert attributes(sent) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": str(job.id),
    }
    assert attributes(processed) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": str(job.id),
        "holdfast.attempt": 1,
        "holdfast.max_attempts": 3,
    }
    assert kept(url)[:-2] == f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-"
    assert processed.status.status_code is StatusCode.UNSET and processed.links == ()


def test_a_trace_crosses_to_a_worker_with_another_app(
    app: Holdfast, open_app: Callable[..., Holdfast], spans: Spans, traced: Any
) -> None:
    app.task(name="work")(nothing).enqueue()
    elsewhere, others = open_app(), Spans()
    instrument(elsewhere, metrics=False, tracer_provider=others.provider)
    elsewhere.task(name="work")(nothing)
    drain(elsewhere)
    assert is_child(others.one("process default"), spans.one("send default"))


def test_a_coroutine_has_its_span_around_it(app: Holdfast, spans: Spans, traced: Any) -> None:
    @app.task
    async def work(number: int) -> None:
        with spans.tracer.start_as_current_span(f"inner {number}"):
            pass

    work.enqueue_many([{"number": number} for number in range(3)])
    drain(app)
    around = {span.context.span_id: span for span in spans.named("process default")}
    parents = {span.parent.span_id for number in range(3) if (span := spans.one(f"inner {number}")).parent}
    assert parents == around.keys() and len(around) == 3
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_what_a_coroutine_enqueues_is_in_its_trace(app: Holdfast, spans: Spans, traced: Any) -> None:
    work = app.task(name="work")(nothing)

    async def main() -> None:
        with spans.tracer.start_as_current_span("request"):
            await work.aenqueue()

    asyncio.run(main())
    assert is_child(spans.one("send default"), spans.one("request"))


def test_a_bulk_enqueue_is_one_producer_span(app: Holdfast, spans: Spans, traced: Any) -> None:
    app.task(name="work")(nothing).enqueue_many([{}] * 3)
    sent = spans.one("send default")
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in attributes(sent)
    drain(app)
    assert [is_child(span, sent) for span in spans.named("process default")] == [True] * 3


def test_a_deduplicated_enqueue_is_marked_in_its_span(app: Holdfast, spans: Spans, traced: Any) -> None:
    keyed = app.task(name="work")(nothing).using(key="once")
    keyed.enqueue(), keyed.enqueue()
    first, second = map(attributes, spans.named("send default"))
    assert first["messaging.message.id"] == second["messaging.message.id"]
    assert "holdfast.deduplicated" not in first and second["holdfast.deduplicated"] is True


def test_a_replaced_job_gets_the_trace_of_the_new_enqueue(app: Holdfast, spans: Spans, traced: Any) -> None:
    keyed = app.task(name="work")(nothing).using(key="once", on_conflict="replace")
    keyed.enqueue(), keyed.enqueue()
    drain(app)
    assert is_child(spans.one("process default"), spans.named("send default")[1])


def test_a_failed_enqueue_has_an_error_status_without_the_message(app: Holdfast, spans: Spans, traced: Any) -> None:
    work = app.task(name="work")(nothing)
    app.close()
    with pytest.raises(Exception):  # noqa: B017
        work.enqueue()
    status = spans.one("send default").status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "StoreClosed")


# --- links ----------------------------------------------------------------------------------------


def test_a_retry_has_a_trace_of_its_own_with_a_link(app: Holdfast, spans: Spans, traced: Any) -> None:
    @app.task(max_attempts=3, retry=[0, 0])
    def stumble(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ConnectionError("no line")

    stumble.enqueue()
    drain(app)
    sent, (first, second, third) = spans.one("send default"), spans.named("process default")
    assert is_child(first, sent) and is_linked(second, sent) and is_linked(third, sent)
    assert [attributes(span)["holdfast.attempt"] for span in (first, second, third)] == [1, 2, 3]
    assert second.context.trace_id != third.context.trace_id


@pytest.mark.parametrize("how", ["delay", "after"])
def test_a_deferred_job_is_linked(
    app: Holdfast, spans: Spans, traced: Any, clock: FakeClock, how: str, url: str
) -> None:
    work = app.task(name="work")(nothing)
    first = work.enqueue()
    work.using(**{"delay": 60} if how == "delay" else {"after": first}).enqueue()  # type: ignore[misc]
    assert kept(url, 2).startswith("link 00-")
    clock.advance(61)
    drain(app)
    sent, processed = spans.named("send default"), spans.named("process default")
    assert is_child(processed[0], sent[0]) and is_linked(processed[1], sent[1])


@pytest.mark.parametrize("follow", ["child", "link"])
def test_follow_selects_children_or_links(app: Holdfast, spans: Spans, clock: FakeClock, follow: Any) -> None:
    instrument(app, metrics=False, tracer_provider=spans.provider, follow=follow)

    @app.task(max_attempts=2, retry=[0])
    def stumble() -> None:
        raise ConnectionError("no line")

    stumble.using(delay=5).enqueue()
    stumble.enqueue()
    clock.advance(6)
    drain(app)
    by_id = {attributes(span)["messaging.message.id"]: span for span in spans.named("send default")}
    processed = spans.named("process default")
    assert len(processed) == 4
    for span in processed:
        sent = by_id[attributes(span)["messaging.message.id"]]
        assert is_child(span, sent) if follow == "child" else is_linked(span, sent)


def test_a_chain_continues_the_trace_of_its_attempts(app: Holdfast, spans: Spans, traced: Any) -> None:
    second = app.task(name="second", queue="b")(nothing)
    third = app.task(name="third", queue="c")(nothing)

    @app.task(queue="a")
    def returns() -> Then:
        return Then(second)

    @app.task(queue="a2")
    def completes(ctx: Context) -> None:
        with ctx.complete() as tx:
            tx.result = Then(third)

    returns.enqueue(), completes.enqueue()
    drain(app)
    assert is_child(spans.one("process b"), spans.one("process a"))
    assert is_child(spans.one("process c"), spans.one("process a2"))


def test_a_chain_keeps_its_trace_through_a_worker_that_is_not_instrumented(
    app: Holdfast, open_app: Callable[..., Holdfast], spans: Spans, traced: Any, url: str
) -> None:
    def first() -> Then:
        return Then(elsewhere.tasks["second"])

    app.task(first).enqueue()
    elsewhere = open_app(clock=app.clock)
    elsewhere.task(first), elsewhere.task(name="second")(nothing)
    drain(elsewhere)
    assert kept(url, 2) == kept(url, 1) is not None


def test_steps_and_the_callback_of_a_batch_have_a_trace(app: Holdfast, spans: Spans, traced: Any) -> None:
    work, report = app.task(name="work")(nothing), app.task(name="report", queue="reports")(nothing)
    with spans.tracer.start_as_current_span("request"):
        app.pipeline(work.s(), group(work.s(), work.s()))
        with app.batch(on_done=report) as batch:
            work.using(batch=batch).enqueue()
    drain(app)
    request = spans.one("request")
    assert [is_child(span, request) for span in spans.named("send default")] == [True] * 4
    assert is_child(spans.one("process reports"), request)


# --- how an attempt ended -------------------------------------------------------------------------


def test_an_error_has_its_code_as_the_status(app: Holdfast, spans: Spans, traced: Any) -> None:
    class Unreachable(Exception): ...

    app.classify(Unreachable, "DEPENDENCY:STRIPE")

    @app.task(max_attempts=1)
    def stumble() -> None:
        raise Unreachable("no line")

    stumble.enqueue()
    drain(app)
    span = spans.one("process default")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "DEPENDENCY:STRIPE")
    assert attributes(span)["error.type"] == "DEPENDENCY:STRIPE"
    (event,) = span.events
    assert dict(event.attributes or {})["exception.message"] == "no line"


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize(
    ("outcome", "name", "code"),
    [
        (Fail("INVALID_INPUT:SCHEMA"), "fail", "INVALID_INPUT:SCHEMA"),
        (Retry(after=60), "retry", None),
        (Snooze(60), "snooze", None),
        (Cancel("gone"), "cancel", None),
    ],
)
def test_outcomes_are_attributes_and_only_a_failure_is_an_error(
    app: Holdfast, spans: Spans, traced: Any, outcome: Any, name: str, code: str | None, raised: bool
) -> None:
    @app.task
    def work() -> Any:
        if raised:
            raise outcome
        return outcome

    work.enqueue()
    drain(app)
    span = spans.one("process default")
    assert attributes(span)["holdfast.outcome"] == name
    assert span.status.description == code and attributes(span).get("error.type") == code


def test_an_exception_that_cannot_be_described_changes_nothing(app: Holdfast, spans: Spans, traced: Any) -> None:
    class Mute(ValueError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @app.task(max_attempts=1)
    def stumble() -> None:
        raise Mute

    job = stumble.enqueue()
    drain(app)
    assert job.refresh().error_code == "INVALID_INPUT:VALUE"
    assert spans.one("process default").status.description == "INVALID_INPUT:VALUE"
