"""Metrics for Prometheus: the HTTP server, and invalid arguments."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast import Holdfast
from holdfast.contrib import prometheus
from holdfast.contrib.prometheus import Collector, make_registry, make_wsgi_app, serve
from holdfast.errors import InvalidInput
from support.refusals import told
from support.running_worker import PATIENCE_SECONDS, eventually
from support.scraping import Scrape, fetch, served

Open = Callable[..., Holdfast]


def test_registering_reads_nothing_and_a_failed_scrape_is_reported(open_app: Open) -> None:
    app = open_app()
    registry = CollectorRegistry()
    app.close()
    registry.register(Collector(app))
    found = Scrape(generate_latest(registry).decode())
    assert found["holdfast_scrape_error"] == 1
    assert found.families.keys() == {"holdfast_scrape_error", "holdfast_scrape_duration_seconds"}


def test_metrics_can_be_mounted_in_a_web_server(app: Holdfast) -> None:
    app.queue("inbox").send(1)
    answers: list[Any] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "QUERY_STRING": ""}
    body = b"".join(make_wsgi_app(app)(environ, lambda *answer: answers.append(answer)))
    assert answers[0][0] == "200 OK"
    assert Scrape(body.decode()).value("holdfast_jobs", queue="inbox") == 1


def test_a_port_in_use_is_refused(app: Holdfast) -> None:
    server = serve(app, 0)
    assert server.host == "127.0.0.1", "on this machine only"
    with pytest.raises(InvalidInput, match=f"127.0.0.1 port {server.port} .*choose another"):
        serve(app, server.port)
    server.close()
    again = serve(app, server.port)
    assert fetch(again.url)["holdfast_scrape_error"] == 0
    again.close()


@pytest.mark.parametrize(
    "options",
    [
        *({"port": port} for port in (-1, 65_536, None, "80", True)),
        *({"host": host} for host in (5, "", "a\0b", "no host", "x" * 300)),
    ],
    ids=repr,
)
def test_an_invalid_address_is_refused(app: Holdfast, options: dict[str, Any]) -> None:
    with told(InvalidInput, *options):
        serve(app, **({"port": 0} | options))


@pytest.mark.parametrize("most", [0, -1, 1.5, "5", None, True, 2**63])
@pytest.mark.parametrize("make", [Collector, make_registry, make_wsgi_app])
def test_an_invalid_most_places_is_refused(app: Holdfast, make: Callable[..., Any], most: Any) -> None:
    with told(InvalidInput, "most_places"):
        make(app, most_places=most)


@pytest.mark.parametrize("make", [Collector, make_registry, make_wsgi_app, lambda app: serve(app, 0)])
def test_app_must_be_a_holdfast(make: Callable[..., Any], url: str) -> None:
    for other in (None, url, Holdfast):
        with told(InvalidInput, "app must be a Holdfast"):
            make(other)


def test_a_stalled_client_is_disconnected(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prometheus._Handler, "timeout", 0.2)
    with closing(serve(app, 0)) as server:
        for sent in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x"):
            with stalling(server, sent) as client:
                assert client.recv(1000) == b"", "it is cut off"
        eventually(lambda: serving() == [])
        assert fetch(server.url)["holdfast_scrape_error"] == 0
    assert capsys.readouterr().err == ""


def test_stalled_clients_occupy_a_bounded_number_of_threads(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_CLIENTS", 3)
    with closing(serve(app, 0)) as server, ExitStack() as clients:
        for number in range(3):
            clients.enter_context(stalling(server, b"GET /metr"))
            eventually(lambda number=number: len(serving()) == number + 1)  # type: ignore[misc]
        for _ in range(3):
            with stalling(server, b"") as client:
                assert client.recv(1000) == b"", "it is sent away"
        assert len(serving()) == 3
        clients.close()
        eventually(lambda: serving() == [])
        assert fetch(server.url)["holdfast_scrape_error"] == 0


def stalling(server: prometheus.MetricsServer, sent: bytes) -> socket.socket:
    """Connect a client that sends only this."""
    client = socket.create_connection((server.host, server.port), timeout=PATIENCE_SECONDS)
    client.sendall(sent)
    return client


def serving() -> list[str]:
    """Return the threads that serve a client."""
    return [one.name for one in threading.enumerate() if "process_request_thread" in one.name]


def test_concurrent_scrapes_are_all_answered(open_app: Open) -> None:
    live = open_app()
    live.queue("inbox").send_many(range(10))
    found: list[Scrape] = []
    with served(live) as url:
        threads = [threading.Thread(target=lambda: found.append(fetch(url))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert [one.value("holdfast_jobs") for one in found] == [10] * 8
