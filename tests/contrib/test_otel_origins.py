"""OpenTelemetry: traces from plain SQL, messages, and apps without an SDK."""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from holdfast import Context, Holdfast
from holdfast.contrib.otel import Instrumentation, instrument
from holdfast.errors import InvalidInput
from support.refusals import told
from support.running_worker import drain
from support.spans import Spans, attributes, is_child, kept, nothing

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = int(TRACEPARENT.split("-")[1], 16)
UNREADABLE = ["", "nonsense", "00-0-0-0", f"link{TRACEPARENT}", "link ", b"\xff", None, 7, "x" * 10_000, "\0"]

# --- what others put there ------------------------------------------------------------------------


def put(url: str, traceparent: Any) -> None:
    connection = sqlite3.connect(url)
    connection.execute("INSERT INTO holdfast_jobs (task, trace) VALUES ('work', ?)", (traceparent,))
    connection.commit()
    connection.close()


def test_a_job_by_plain_sql_may_bring_its_traceparent(app: Holdfast, spans: Spans, traced: Any, url: str) -> None:
    app.task(name="work")(nothing)
    put(url, f"{TRACEPARENT} vendor=1,other=2")
    drain(app)
    span = spans.one("process default")
    assert span.parent is not None and (span.parent.trace_id, span.parent.is_remote) == (TRACE_ID, True)
    assert span.context.trace_state.to_header() == "vendor=1,other=2"


@pytest.mark.parametrize("text", UNREADABLE)
def test_an_unreadable_trace_is_ignored(app: Holdfast, spans: Spans, traced: Any, url: str, text: Any) -> None:
    job = app.task(name="work")(nothing)
    put(url, text)
    drain(app)
    span = spans.one("process default")
    assert span.parent is None and span.links == () and job.app.jobs.get(1).status == "succeeded"


def test_a_trace_that_is_not_text_is_ignored(app: Holdfast, spans: Spans, traced: Any, url: str) -> None:
    app.task(name="work")(nothing).enqueue()
    app.queue("inbox").send("hello")
    connection = sqlite3.connect(url)
    connection.execute("UPDATE holdfast_jobs SET trace = CAST(x'fffe' AS TEXT)")
    connection.commit()
    connection.close()
    drain(app)
    message = app.queue("inbox").receive()
    assert message is not None
    with traced.process(message):
        message.ack()
    assert [span.parent for span in (spans.one("process default"), spans.one("process inbox"))] == [None, None]


def test_a_trace_that_is_not_sampled_stays_so(app: Holdfast, open_app: Callable[..., Holdfast], url: str) -> None:
    instrument(app, metrics=False, tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    app.task(name="work")(nothing).enqueue()
    assert int(kept(url)[-2:], 16) & 1 == 0, "the flag of what is sampled"
    elsewhere, others = open_app(clock=app.clock), Spans()
    instrument(elsewhere, metrics=False, tracer_provider=others.provider)
    elsewhere.task(name="work")(nothing)
    drain(elsewhere)
    assert others.all() == []


# --- messages -------------------------------------------------------------------------------------


def test_a_message_is_handled_in_the_trace_that_sent_it(app: Holdfast, spans: Spans, traced: Any) -> None:
    inbox = app.queue("inbox")
    inbox.send("hello")
    inbox.send_many(["a", "b"])
    for _ in range(3):
        message = inbox.receive()
        assert message is not None and message.trace is not None
        with traced.process(message) as span:
            assert trace.get_current_span() is span
            message.ack()
    sent, processed = spans.named("send inbox"), spans.named("process inbox")
    assert [is_child(span, sent[0 if n == 0 else 1]) for n, span in enumerate(processed)] == [True] * 3
    assert "holdfast.task" not in attributes(processed[0]) and "holdfast.task" not in attributes(sent[0])


def test_an_error_in_handling_a_message_is_recorded_and_raised(app: Holdfast, spans: Spans, traced: Any) -> None:
    inbox = app.queue("inbox")
    inbox.send("hello")
    message = inbox.receive()
    assert message is not None
    with pytest.raises(KeyError), traced.process(message):
        raise KeyError("x")
    assert spans.one("process inbox").status.description == "INVALID_INPUT:LOOKUP"


# --- off ------------------------------------------------------------------------------------------


def test_without_an_sdk_jobs_run_and_store_no_trace(app: Holdfast, url: str) -> None:
    instrument(app)
    job = app.task(name="work")(nothing).enqueue()
    app.queue("inbox").send("hello")
    drain(app)
    assert job.refresh().status == "succeeded" and kept(url) is None and kept(url, 2) is None
    assert app._layers() == [], "and nothing is around the handlers"


def test_instrumentation_can_be_undone_and_repeated(app: Holdfast, spans: Spans, traced: Instrumentation) -> None:
    with pytest.raises(InvalidInput, match="already"):
        instrument(app)
    traced.undo()
    app.task(name="work")(nothing).enqueue()
    drain(app)
    assert spans.all() == [] and app._layers() == []
    instrument(app, metrics=False, tracer_provider=spans.provider).undo()


def test_an_invalid_follow_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="'auto', 'child' or 'link'"):
        instrument(app, follow="parent")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"app": None}, "app must be a Holdfast"),
        ({"app": "app.db"}, "app must be a Holdfast"),
        ({"metrics": "no"}, "metrics must be True or False"),
        ({"most_places": "5"}, "most_places"),
        ({"most_places": 0, "metrics": False}, "most_places"),
        ({"follow": 5}, "'auto', 'child' or 'link'"),
        ({"tracer_provider": "x"}, "tracer_provider must have a method get_tracer"),
        ({"meter_provider": "x"}, "meter_provider must have a method get_meter"),
        ({"meter_provider": TracerProvider()}, "meter_provider must have a method get_meter"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_a_wrong_argument_is_refused_and_nothing_is_instrumented(
    app: Holdfast, options: dict[str, Any], words: str
) -> None:
    with told(InvalidInput, words):
        instrument(**({"app": app} | options))
    instrument(app, metrics=False).undo()


def test_other_middleware_runs_inside_the_span(app: Holdfast, spans: Spans) -> None:
    @app.middleware
    def within(ctx: Context) -> Iterator[None]:
        with spans.tracer.start_as_current_span("middleware"):
            yield

    instrument(app, metrics=False, tracer_provider=spans.provider)
    app.task(name="work")(nothing).enqueue()
    drain(app)
    assert is_child(spans.one("middleware"), spans.one("process default"))
