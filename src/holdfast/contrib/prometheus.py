"""Metrics for Prometheus, read from the store at each scrape: the extra `holdfast[prometheus]`.

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
from .metrics import BOUNDS_SECONDS, MEASURES, MOST_PLACES, Histogram, Measure, MetricsReader

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client import make_wsgi_app as _wsgi_app_of
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector as _Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "metrics for Prometheus need its client: pip install 'holdfast[prometheus]'", name=missing.name
    ) from missing
log = logging.getLogger("holdfast.metrics")
LOOPBACK = "127.0.0.1"
HIGHEST_PORT, LONGEST_HOST = 65_535, 253
PATIENCE_SECONDS = 10
MOST_AT_ONCE = 20
DURATION = Measure("holdfast_scrape_duration_seconds", "gauge", "How long it took to read all this.", unit="s")
ERROR = Measure("holdfast_scrape_error", "gauge", "1 if it could not be read; then there is nothing else.")
_LES = [*map(floatToGoString, BOUNDS_SECONDS), "+Inf"]


class Collector(_Collector):
    """All metrics of an app's database. Register it in a registry of yours; nothing is read before a scrape.

    most_places: so many pairs of queue and task have series of their own, the rest are counted as _others.
    """

    def __init__(self, app: Holdfast, *, most_places: int = MOST_PLACES) -> None:
        self._reader = MetricsReader(app, most_places)
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
    validate.integer(port, "port", 0, HIGHEST_PORT)
    validate.name(host, "host", LONGEST_HOST)  # an empty one would be any address of this machine
    answer = make_wsgi_app(app)
    try:
        server = _Server(host, port)
    except (OSError, ValueError) as error:  # a name that is none is a ValueError
        raise InvalidInput(
            f"metrics cannot be served at port {port} of {host} ({error}): choose another port, or see who has it"
        ) from None
    server.set_app(answer)
    thread = threading.Thread(target=server.serve_forever, name="holdfast-metrics", daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return MetricsServer(close, host, server.server_port)


class _Handler(WSGIRequestHandler):
    """A client that stalls is not waited for, or it would keep its thread for ever."""

    timeout = PATIENCE_SECONDS

    def log_message(self, *_: Any) -> None:
        """Each scrape would be a line in the log of the worker."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client, up to a bound. One that comes when all are busy is sent away."""

    daemon_threads = True
    request_queue_size = MOST_AT_ONCE  # of those who connect at once, the rest would try again after a second

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((str(address[0]), port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """It stalled, or went away: no reason for a traceback on stderr, as there would be otherwise."""
        del request
        log.debug("the metrics were not sent to %s", client_address, exc_info=True)


def _family(measure: Measure) -> Any:
    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[measure.kind](measure.name, measure.help, labels=measure.labels)


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    return list(zip(_LES, histogram.counts, strict=True))
