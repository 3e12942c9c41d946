"""Large payloads and results on the command line: shown when they are asked for, and told of when they are gone."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from blobs import MemoryBlobs, blob_files, large
from holdfast import Holdfast

Run = Callable[..., Result]
Data = Callable[..., Any]


@pytest.fixture
def id(app: Holdfast) -> int:
    job = app.external("approval", large())
    app.jobs.complete(job.id, large(letter="r"))
    return job.id


def test_they_are_shown_when_they_are_asked_for(on: Run, data: Data, id: int) -> None:
    assert data("show", id, "--args", "--result")["args"] == large()
    assert data("show", id, "--result")["result"] == large(letter="r")
    shown = on("show", id, "--args", "--result").stdout
    assert shown.count("x") > len(large()) and shown.count("r") > len(large())
    assert data("jobs", "--args")["jobs"][0]["args"] == large()


def test_otherwise_they_are_not_even_read(on: Run, data: Data, url: str, id: int) -> None:
    for path in blob_files(url):
        path.unlink()
    assert on("show", id).exit_code == on("jobs").exit_code == 0
    assert "args" not in data("show", id)


def test_of_one_that_is_gone_the_rest_is_shown(on: Run, data: Data, url: str, id: int) -> None:
    for path in blob_files(url):
        path.unlink()
    found = data("show", id, "--args", "--result")
    assert (found["args"], found["result"], found["status"]) == (None, None, "succeeded")
    assert "does not exist" in found["args_error"] and "does not exist" in found["result_error"]
    assert "does not exist" in on("show", id, "--args").stdout
    assert on("jobs", "--args").exit_code == 0


def test_send_takes_large_ones(app: Holdfast, on: Run, url: str) -> None:
    sent = on("send", "inbox", "-", input=json.dumps(large()))
    assert app.jobs.get(int(sent.stdout)).args == large() and len(blob_files(url)) == 1


def test_send_does_not_put_one_where_the_app_would_not_look(open_app: Callable[..., Holdfast], on: Run) -> None:
    open_app(blobs=MemoryBlobs()).queue("inbox").send(large())
    sent = on("send", "inbox", "-", input=json.dumps(large(letter="y")))
    assert sent.exit_code != 0 and "--app" in sent.stderr
    assert "Traceback" not in sent.output
