"""An app whose spans are exported to memory."""

import pytest

from holdfast import Holdfast
from holdfast.contrib.otel import Instrumentation, instrument
from support.spans import Spans


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def traced(app: Holdfast, spans: Spans) -> Instrumentation:
    return instrument(app, metrics=False, tracer_provider=spans.provider)
