"""Metrics for Prometheus, read from the store at each scrape. Needs the extra `holdfast[prometheus]`.

from holdfast.contrib.prometheus import Collector
prometheus_client.REGISTRY.register(Collector(app))
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from time import perf_counter
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from .. import validate
from ..errors import InvalidInput
from ..supervisor import Holdfast
from .metrics import BOUNDS_SECONDS, METRICS, MOST_PLACES, Histogram, Metric, MetricsReader

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client import make_wsgi_app as _wsgi_app_of
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as MetricFamily
    from prometheus_client.registry import Collector as _Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "Prometheus metrics need prometheus-client: pip install 'holdfast[prometheus]'", name=missing.name
    ) from missing
log = logging.getLogger("holdfast.metrics")
LOOPBACK = "127.0.0.1"
MAX_PORT, MAX_HOST_LENGTH = 65_535, 253
CLIENT_TIMEOUT_SECONDS = 10
MAX_CLIENTS = 20
DURATION = Metric("holdfast_scrape_duration_seconds", "gauge", "Duration of this scrape.", unit="s")
ERROR = Metric("holdfast_scrape_error", "gauge", "1 if the scrape failed; then there are no other metrics.")
_LES = [*map(floatToGoString, BOUNDS_SECONDS), "+Inf"]


class Collector(_Collector):
    """A Prometheus collector for the metrics of an app's database. It reads nothing before a scrape.

    most_places: the number of pairs of queue and task with their own series. The rest are counted as _others.
    """

    def __init__(self, app: Holdfast, *, most_places: int = MOST_PLACES) -> None:
        self._reader = MetricsReader(app, most_places)
        self._lock = threading.Lock()  # concurrent scrapes read one after another

    def describe(self) -> Iterable[MetricFamily]:
        return [_family(metric) for metric in (*METRICS, DURATION, ERROR)]

    def collect(self) -> Iterable[MetricFamily]:
        started = perf_counter()
        families: list[MetricFamily] = []
        try:
            with self._lock:
                reading = self._reader.read()
            for metric in METRICS:
                family = _family(metric)
                for labels, value in reading.values[metric.name].items():
                    family.add_metric(labels, value)
                for labels, histogram in reading.histograms.get(metric.name, {}).items():
                    family.add_metric(labels, _buckets(histogram), histogram.sum)
                families.append(family)
            failed = False
        except Exception:  # report any failure in the scrape itself
            log.exception("the metrics could not be read")
            families, failed = [], True
        for metric, value in ((DURATION, perf_counter() - started), (ERROR, float(failed))):
            family = _family(metric)
            family.add_metric((), value)
            families.append(family)
        return families


class MetricsServer:
    """Serves the metrics of an app until it is closed."""

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
    """Return a registry with the metrics of the app only."""
    registry = CollectorRegistry()
    registry.register(Collector(app, most_places=most_places))
    return registry


def make_wsgi_app(app: Holdfast, *, most_places: int = MOST_PLACES) -> Callable[..., Any]:
    """Return a WSGI application to mount in a web server, at /metrics."""
    wsgi_app: Callable[..., Any] = _wsgi_app_of(make_registry(app, most_places=most_places))
    return wsgi_app


def serve(app: Holdfast, port: int, host: str = LOOPBACK) -> MetricsServer:
    """Serve the metrics over HTTP from a thread of this process. Port 0 selects a free port."""
    validate.integer(port, "port", 0, MAX_PORT)
    validate.name(host, "host", MAX_HOST_LENGTH)  # an empty host would listen on all interfaces
    wsgi_app = make_wsgi_app(app)
    try:
        server = _Server(host, port)
    except (OSError, ValueError) as error:  # ValueError: an invalid host name
        raise InvalidInput(
            f"metrics cannot be served at {host} port {port} ({error}): choose another port, "
            "or stop the process that uses it"
        ) from None
    server.set_app(wsgi_app)
    thread = threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return MetricsServer(close, host, server.server_port)


class _Handler(WSGIRequestHandler):
    """Disconnects clients that stall, so that they do not occupy a thread."""

    timeout = CLIENT_TIMEOUT_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log nothing: each scrape would be a line in the log of the worker."""


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each client in a thread, up to a limit. Further clients are disconnected."""

    daemon_threads = True
    request_queue_size = MAX_CLIENTS  # with a shorter queue, clients would connect only after a second

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._slots = threading.BoundedSemaphore(MAX_CLIENTS)
        super().__init__((str(address[0]), port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread could not be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level: the default prints a traceback when a client stalls or disconnects."""
        del request
        log.debug("metrics could not be sent to %s", client_address, exc_info=True)


_FAMILIES: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(metric: Metric) -> Any:
    return _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    return list(zip(_LES, histogram.counts, strict=True))
