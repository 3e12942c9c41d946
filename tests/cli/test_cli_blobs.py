"""Large payloads and results on the command line: shown on request, and reported when missing."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast
from support.blob_stores import MemoryBlobs, blob_files, large

Run = Callable[..., Result]
Data = Callable[..., Any]


@pytest.fixture
def id(app: Holdfast) -> int:
    job = app.external("approval", large())
    app.jobs.complete(job.id, large(letter="r"))
    return job.id


def test_large_payloads_are_shown_on_request(on: Run, data: Data, id: int) -> None:
    assert data("show", id, "--args", "--result")["args"] == large()
    assert data("show", id, "--result")["result"] == large(letter="r")
    shown = on("show", id, "--args", "--result").stdout
    assert shown.count("x") > len(large()) and shown.count("r") > len(large())
    assert data("jobs", "--args")["jobs"][0]["args"] == large()


def test_large_payloads_are_not_read_unless_requested(on: Run, data: Data, url: str, id: int) -> None:
    for path in blob_files(url):
        path.unlink()
    assert on("show", id).exit_code == on("jobs").exit_code == 0
    assert "args" not in data("show", id)


def test_a_job_with_a_missing_payload_file_is_still_shown(on: Run, data: Data, url: str, id: int) -> None:
    for path in blob_files(url):
        path.unlink()
    found = data("show", id, "--args", "--result")
    assert (found["args"], found["result"], found["status"]) == (None, None, "succeeded")
    assert "does not exist" in found["args_error"] and "does not exist" in found["result_error"]
    assert "does not exist" in on("show", id, "--args").stdout
    assert on("jobs", "--args").exit_code == 0


def test_send_accepts_large_payloads(app: Holdfast, on: Run, url: str) -> None:
    sent = on("send", "inbox", "-", input=json.dumps(large()))
    assert app.jobs.get(int(sent.stdout)).args == large() and len(blob_files(url)) == 1


def test_send_stores_large_payloads_where_the_app_looks_for_them(open_app: Callable[..., Holdfast], on: Run) -> None:
    open_app(blobs=MemoryBlobs()).queue("inbox").send(large())
    sent = on("send", "inbox", "-", input=json.dumps(large(letter="y")))
    assert sent.exit_code != 0 and "--app" in sent.stderr
    assert "Traceback" not in sent.output
