"""Exported spans, and how they are related."""

import sqlite3
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The exported spans, in the order in which they ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(span: ReadableSpan, of: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == of.context.span_id and in_trace(span, of)


def in_trace(span: ReadableSpan, of: ReadableSpan) -> bool:
    return span.context.trace_id == of.context.trace_id


def is_linked(span: ReadableSpan, to: ReadableSpan) -> bool:
    """Return whether the span starts its own trace, with a link."""
    linked = [link.context.span_id for link in span.links]
    return span.parent is None and not in_trace(span, to) and linked == [to.context.span_id]


def kept(url: str, job_id: int = 1) -> Any:
    connection = sqlite3.connect(url)
    (found,) = connection.execute("SELECT trace FROM holdfast_jobs WHERE id = ?", (job_id,)).fetchone()
    connection.close()
    return found


def nothing() -> None: ...
