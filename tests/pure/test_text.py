"""One serialiser for all JSON: what it writes, and that its table of shapes matches the classes."""

from datetime import datetime, timedelta, timezone
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest
from msgspec import Struct

import holdfast
from holdfast import Holdfast
from holdfast.model.stats import TaskAttempts, WorkerHealth
from holdfast.text import SHAPES, to_data

AT = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))


def test_times_are_utc_text_and_durations_are_seconds() -> None:
    assert to_data({"at": AT, "for": timedelta(minutes=1.5)}) == {"at": "2026-01-31T11:00:00.000000Z", "for": 90.0}


def test_a_struct_becomes_its_fields_with_the_extras_and_renames_of_its_shape() -> None:
    worker = WorkerHealth("w", 7, "host", True, "suspended", AT, AT, 1, 4, ("mail",), None, None)
    data = to_data([worker])[0]
    assert (data["state"], data["queues"]) == ("suspended", ["mail"])
    assert data["started_at"].endswith("Z")


def test_keys_of_a_mapping_become_text() -> None:
    assert to_data(TaskAttempts("q", "t", {1: 3}, 3, 0, 0))["by_attempt"] == {"1": 3}


def test_attributes_can_be_omitted() -> None:
    assert "running" not in to_data(
        WorkerHealth("w", 7, "h", True, False, AT, AT, 1, 4, None, None, None), omit=["running"]
    )


def test_payloads_and_results_of_a_job_are_left_out(app: Holdfast) -> None:
    job = app.jobs.get(app.queue("inbox").send({"text": "secret"}))
    data = to_data(job)
    assert "secret" not in msgspec.json.encode(data).decode() and data["queue"] == "inbox"


def test_values_of_other_packages_are_left_to_the_encoder() -> None:
    class Job(Struct):
        word: str

    assert to_data(Job("x")) == Job("x") and to_data(msgspec.Raw(b"1")) == msgspec.Raw(b"1")


def classes() -> dict[str, Any]:
    """Every class of the package by name; contrib may need packages that are not installed."""
    modules = [one.name for one in walk_packages(holdfast.__path__, "holdfast.") if ".contrib" not in one.name]
    return {
        name: value
        for module in modules
        if not module.endswith("__main__")
        for name, value in vars(import_module(module)).items()
        if isinstance(value, type)
    }


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_names_a_class_and_its_attributes(name: str) -> None:
    kind, shape = classes()[name], SHAPES[name]
    names = {*shape.fields, *shape.extra, *shape.rename}
    assert {one for one in names if not hasattr(kind, one)} == set()
