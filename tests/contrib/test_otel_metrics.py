"""OpenTelemetry: metrics with the same names as for Prometheus."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from holdfast import Holdfast
from holdfast.contrib.metrics import BOUNDS_SECONDS, METRICS
from holdfast.contrib.otel import instrument
from holdfast.testing import FakeClock
from support.running_worker import drain
from support.scraping import scrape


class Metered:
    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def read(self) -> dict[str, Any]:
        """By name, what an exporter would get."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> dict[tuple[Any, ...], Any]:
        found = self.read()
        points = found[name].data.data_points if name in found else []
        return {tuple(sorted(point.attributes.items())): point for point in points}


@pytest.fixture
def metered() -> Metered:
    return Metered()


@pytest.fixture
def busy(app: Holdfast, metered: Metered, clock: FakeClock) -> Holdfast:
    instrument(app, meter_provider=metered.provider)

    @app.task(queue="mail", max_attempts=2, retry=[0])
    def send(well: bool) -> None:
        if not well:
            raise ConnectionError("no line")

    send.enqueue_many([{"well": True}, {"well": True}, {"well": False}])
    clock.advance(3)
    drain(app)
    app.queue("inbox").send("hello")
    return app


def test_all_metrics_of_the_database_have_the_same_names(busy: Holdfast, metered: Metered) -> None:
    found = metered.read()
    assert found.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        assert found[metric.name].unit == metric.unit and found[metric.name].description == metric.help


def test_metrics_have_the_values_of_a_scrape(busy: Holdfast, metered: Metered) -> None:
    scraped = scrape(busy)
    for name in ("holdfast_jobs", "holdfast_attempts", "holdfast_failures", "holdfast_retries", "holdfast_enqueued"):
        expected = {tuple(sorted(one.labels.items())): one.value for one in scraped.families[name].samples}
        assert {place: point.value for place, point in metered.points(name).items()} == expected, name
    assert metered.points("holdfast_jobs")[("queue", "inbox"), ("state", "ready"), ("task", "")].value == 1


def test_counters_are_monotonic(busy: Holdfast, metered: Metered) -> None:
    found = metered.read()
    counters = [found[metric.name].data for metric in METRICS if metric.kind == "counter"]
    assert len(counters) == 4 and all(one.is_monotonic for one in counters)


def test_how_long_attempts_waited_and_ran_are_histograms_with_the_same_bounds(
    busy: Holdfast, metered: Metered
) -> None:
    place = (("queue", "mail"), ("task", "send"))
    run, wait = (metered.points(f"holdfast_attempt_{what}_seconds")[place] for what in ("run", "wait"))
    assert run.count == wait.count == 4
    assert tuple(run.explicit_bounds) == tuple(wait.explicit_bounds) == BOUNDS_SECONDS
    assert wait.sum == 9 and run.sum > 0


def test_a_collection_reads_the_database_once(
    busy: Holdfast, metered: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    totals = busy.store.statistics.totals
    monkeypatch.setattr(busy.store.statistics, "totals", lambda: reads.append(1) or totals())
    metered.read()
    assert len(reads) == 1


def test_a_closed_or_uninstrumented_app_reports_nothing(
    app: Holdfast, metered: Metered, open_app: Callable[..., Holdfast]
) -> None:
    instrument(app, meter_provider=metered.provider)
    app.close()
    other, of_the_other = open_app(), Metered()
    instrument(other, meter_provider=of_the_other.provider).undo()
    assert metered.read() == of_the_other.read() == {}


def test_metrics_can_be_left_to_another_process(app: Holdfast, metered: Metered) -> None:
    instrument(app, metrics=False, meter_provider=metered.provider)
    app.task(name="work")(lambda: None).enqueue()
    drain(app)
    assert metered.read().keys() == {"holdfast_attempt_run_seconds", "holdfast_attempt_wait_seconds"}
