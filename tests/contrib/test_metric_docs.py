"""The reference documents every metric and attribute, and the dashboard queries only existing ones."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.contrib import otel, prometheus
from holdfast.contrib.metrics import BOUNDS_SECONDS, METRICS, Metric
from support.scraping import scrape
from support.transitions import claim_tasks

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
API = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
GUIDE = (DOCS / "guides" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((DOCS / "dashboards" / "holdfast.json").read_text(encoding="utf-8"))

ALL = [*METRICS, prometheus.DURATION, prometheus.ERROR]


def served_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


SERIES = {served_name(one) for one in ALL} | {
    f"{one.name}_{part}" for one in ALL if one.kind == "histogram" for part in ("bucket", "sum", "count")
}


@pytest.mark.parametrize("metric", ALL, ids=lambda one: one.name)
def test_every_metric_is_in_the_reference_with_its_type_labels_and_help(metric: Metric) -> None:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    cells = f"| `{served_name(metric)}` | {metric.kind} | {labels + ' ' if labels else ''}| {metric.help}"
    assert cells in REFERENCE


def test_the_reference_has_no_other_metrics() -> None:
    assert set(re.findall(r"^\| `(holdfast_\w+)` \|", REFERENCE, re.MULTILINE)) == {served_name(one) for one in ALL}


def test_the_reference_has_the_bounds() -> None:
    (listed,) = re.findall(r"The bounds, in seconds: ([\d., \n]+)\. Sums", REFERENCE)
    assert tuple(map(float, listed.split(","))) == BOUNDS_SECONDS


def test_the_reference_has_the_outcomes_of_operator_actions(app: Holdfast) -> None:
    (listed,) = re.findall(r"^\| `outcome` \| (.*) \|$", REFERENCE, re.MULTILINE)

    @app.task
    def work() -> None: ...

    for end in (app.jobs.complete, app.jobs.cancel, lambda job: app.jobs.fail(job, "REJECTED")):
        job = work.enqueue()
        assert len(claim_tasks(app.store, ["default"], ["work"], 1, 300 * SECOND, "worker-1")) == 1
        end(job.id)
    outcomes = scrape(app).labels("holdfast_attempts_total", "outcome")
    assert outcomes == {"completed", "cancelled", "failed"} <= set(re.findall(r"`(\w+)`", listed))


def test_every_attribute_of_a_span_is_in_the_reference() -> None:
    source = Path(otel.__file__).read_text(encoding="utf-8")
    given = set(re.findall(r"\"((?:messaging|holdfast|error)\.[a-z_.]+)\"", source)) - {"holdfast.contrib.otel"}
    assert len(given) > 8
    assert {name for name in given if f"`{name}`" not in REFERENCE} == set()


def test_every_parameter_is_in_the_reference() -> None:
    for function in (prometheus.Collector, prometheus.serve, prometheus.make_wsgi_app, otel.instrument):
        (line,) = re.findall(rf"^\| `{function.__name__}\((.*?)\)` \|", API, re.MULTILINE)
        assert set(inspect.signature(function).parameters) <= set(re.findall(r"\w+", line))


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_and_the_guide_query_existing_metrics() -> None:
    asked = {name for text in [*expressions(), GUIDE] for name in re.findall(r"\bholdfast_[a-z_]+", text)}
    assert asked - SERIES == set()


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for text in expressions() for name in re.findall(r"\bholdfast_[a-z_]+", text)}
    missing = {one.name for one in ALL if not any(name.startswith(one.name) for name in shown)}
    assert missing == set()


def test_the_dashboard_groups_by_existing_labels() -> None:
    known = {label for one in ALL for label in one.labels} | {"le"}
    for text in expressions():
        for group in re.findall(r"\bby \(([^)]*)\)", text):
            assert set(re.findall(r"\w+", group)) <= known, text


def test_the_dashboard_can_be_imported() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert DASHBOARD["id"] is None and DASHBOARD["schemaVersion"] >= 36
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_the_dashboard_selects_its_data_source_by_a_variable() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and "__inputs" not in DASHBOARD
    named = set(re.findall(r"\$\{?([a-z_A-Z]+)", json.dumps(DASHBOARD)))
    assert named - {"__rate_interval", "__range", "__all"} == variables.keys()


def test_every_query_of_the_dashboard_filters_by_instance() -> None:
    for text in expressions():
        assert len(re.findall(r"\bholdfast_[a-z_]+", text)) == text.count('{instance=~"$instance"'), text
