"""Metrics for Prometheus, read from the store at each scrape: the extra `holdfast[prometheus]`.

from holdfast.contrib.prometheus import Collector
prometheus_client.REGISTRY.register(Collector(app))
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client import make_wsgi_app as _wsgi_app_of
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector as _Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "metrics for Prometheus need its client: pip install 'holdfast[prometheus]'", name=missing.name
    ) from missing

from ..errors import InvalidInput
from ..process import Holdfast
from .measures import BOUNDS_SECONDS, MEASURES, MOST_PLACES, Histogram, Measure, Reader

log = logging.getLogger("holdfast.metrics")

LOOPBACK = "127.0.0.1"

DURATION = Measure("holdfast_scrape_duration_seconds", "gauge", "How long it took to read all this.", unit="s")
ERROR = Measure("holdfast_scrape_error", "gauge", "1 if it could not be read; then there is nothing else.")

_LES = [*map(floatToGoString, BOUNDS_SECONDS), "+Inf"]


class Collector(_Collector):
    """All metrics of an app's database. Register it in a registry of yours; nothing is read before a scrape.

    most_places: so many pairs of queue and task have series of their own, the rest are counted as _others.
    """

    def __init__(self, app: Holdfast, *, most_places: int = MOST_PLACES) -> None:
        self._reader = Reader(app, most_places)
        self._reading = threading.Lock()  # two scrapes at once would both cost

    def describe(self) -> Iterable[Metric]:
        return [_family(measure) for measure in (*MEASURES, DURATION, ERROR)]

    def collect(self) -> Iterable[Metric]:
        began = perf_counter()
        families: list[Metric] = []
        try:
            with self._reading:
                reading = self._reader.read()
            for measure in MEASURES:
                family = _family(measure)
                for labels, value in reading.values[measure.name].items():
                    family.add_metric(labels, value)
                for labels, histogram in reading.histograms.get(measure.name, {}).items():
                    family.add_metric(labels, _buckets(histogram), histogram.sum)
                families.append(family)
            failed = False
        except Exception:  # whatever it is, a scrape that says so is better than none
            log.exception("the metrics could not be read")
            families, failed = [], True
        for measure, value in ((DURATION, perf_counter() - began), (ERROR, float(failed))):
            family = _family(measure)
            family.add_metric((), value)
            families.append(family)
        return families


class MetricsServer:
    """Serves the metrics of an app, until it is closed."""

    def __init__(self, close: Callable[[], None], host: str, port: int) -> None:
        self._close, self.host, self.port = close, host, port

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/metrics"

    def close(self) -> None:
        self._close()

    def __repr__(self) -> str:
        return f"<MetricsServer {self.url}>"


def make_registry(app: Holdfast, *, most_places: int = MOST_PLACES) -> CollectorRegistry:
    """A registry with the metrics of the app and nothing else."""
    registry = CollectorRegistry()
    registry.register(Collector(app, most_places=most_places))
    return registry


def make_wsgi_app(app: Holdfast, *, most_places: int = MOST_PLACES) -> Callable[..., Any]:
    """To be mounted in your own web server, at /metrics."""
    made: Callable[..., Any] = _wsgi_app_of(make_registry(app, most_places=most_places))
    return made


def serve(app: Holdfast, port: int, host: str = LOOPBACK) -> MetricsServer:
    """Serve the metrics over HTTP, from a thread of this process. Port 0 takes any that is free."""
    try:
        server, thread = start_http_server(port, host, make_registry(app))
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"metrics cannot be served at port {port} of {host} ({error}): choose another port, or see who has it"
        ) from None

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return MetricsServer(close, host, server.server_port)


def _family(measure: Measure) -> Any:
    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[measure.kind](measure.name, measure.help, labels=measure.labels)


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    return list(zip(_LES, histogram.counts, strict=True))
