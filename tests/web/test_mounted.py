"""The mounted forms of examples/mounted: Starlette, FastAPI and Django, each with the users of the site.

Also the page that a worker serves.
"""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from support.running_worker import PATIENCE_SECONDS, eventually

FOLDER = Path(__file__).parents[2] / "examples" / "mounted"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], TestClient]]:
    """Import the site of an example, on a new database."""
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "shop.db"))
    monkeypatch.syspath_prepend(str(FOLDER))
    loaded: list[str] = []

    def load(name: str) -> TestClient:
        loaded.extend([name, "jobs"])
        return TestClient(importlib.import_module(name).site, base_url="https://shop.example.org")

    yield load
    if "jobs" in loaded:
        sys.modules["jobs"].app.close()
    for name in loaded:
        sys.modules.pop(name, None)


def page_of(client: TestClient) -> str:
    """The page below its mount point: it names where it is mounted, and its files load from there."""
    page = client.get("/jobs/queues").text
    assert 'data-root="/jobs"' in page
    assert client.get("/jobs/static/main.js").status_code == 200
    return page


def enqueue(client: TestClient, **headers: str) -> Any:
    return client.post("/jobs/api/v1/jobs", json={"task": "send_mail", "args": {"to": "ada"}}, headers=headers)


def test_starlette_with_its_own_session(site: Callable[[str], TestClient]) -> None:
    client = site("starlette_site")
    page_of(client)
    assert client.get("/jobs/api/v1/stats").status_code == 401
    assert "Holdfast" in client.get("/login/kim").text
    assert client.get("/jobs/api/v1/me").json()["role"] == "viewer"
    assert enqueue(client).status_code == 403
    client.get("/login/ada")
    assert enqueue(client).json() == {"id": 1, "deduplicated": False}
    assert client.get("/").text.startswith("Hello, ada")


def test_fastapi_behind_a_proxy_that_authenticates(site: Callable[[str], TestClient]) -> None:
    client = site("fastapi_site")
    page_of(client)
    assert client.post("/mails?to=ada").json() == {"job": 1}
    assert client.get("/jobs/api/v1/jobs/1").status_code == 401
    job = client.get("/jobs/api/v1/jobs/1", headers={"x-user": "ada"}).json()
    assert (job["task"], job["args"]) == ("send_mail", {"to": "ada"})
    assert enqueue(client, **{"x-user": "ada"}).status_code == 201


DJANGO = """
import os
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # this script itself uses the ORM
from django_site import site
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from starlette.testclient import TestClient

client = TestClient(site, base_url="https://shop.example.org")
call_command("migrate", verbosity=0)

def log_in(user):
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    client.cookies.set("sessionid", session.session_key)

def told():
    return client.get("/jobs/api/v1/me").json()

print(client.get("/").text)
print('data-root="/jobs"' in client.get("/jobs/queues").text)
print(client.get("/jobs/api/v1/stats").status_code)
log_in(User.objects.create_user("customer"))
print(client.get("/jobs/api/v1/stats").status_code)
log_in(User.objects.create_user("ada", is_staff=True))
print(told()["name"], told()["role"])
print(client.post("/jobs/api/v1/jobs", json={"task": "send_mail", "args": {"to": "ada"}}).status_code)
"""


def test_django_with_its_staff(tmp_path: Path) -> None:
    """In a process of its own: Django's settings belong to a process."""
    places = {"HOLDFAST_URL": str(tmp_path / "shop.db"), "SITE_DB": str(tmp_path / "site.sqlite3")}
    command = [sys.executable, "-W", "ignore", "-c", DJANGO]
    done = subprocess.run(
        command, cwd=FOLDER, env={**os.environ, **places, "PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "This is Django. The jobs are at /jobs/",
        "True",
        "401",
        "401",
        "ada operator",
        "201",
    ], done.stderr


TASKS = """
from holdfast import Holdfast

app = Holdfast("app.db")

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def test_a_worker_serves_the_page_of_its_app_until_it_stops(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    command = [sys.executable, "-m", "holdfast", "worker", "tasks:app", "--web-port", "0", "--web-redact", "^b$"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            found = next(filter(None, (re.search(r"serving the web page at (\S+)", line) for line in worker.stderr)))
            with httpx.Client(base_url=f"{found[1]}api/v1", timeout=PATIENCE_SECONDS) as api:
                wrong = api.post("/jobs", json={"task": "add", "args": {"a": "x", "b": 2}})
                assert wrong.json()["code"] == "InvalidArguments", "it knows the tasks"
                id = api.post("/jobs", json={"task": "add", "args": {"a": 1, "b": 2}}).json()["id"]
                eventually(lambda: api.get(f"/jobs/{id}").json()["result"] == 3)
                assert api.get(f"/jobs/{id}").json()["args"] == {"a": 1, "b": "•••"}
                (one,) = api.get("/workers").json()["items"]
                assert (one["pid"], one["alive"]) == (worker.pid, True)
            worker.terminate()
            worker.communicate(timeout=PATIENCE_SECONDS)
            assert worker.returncode == 0
            with pytest.raises(httpx.ConnectError):
                httpx.get(found[1])
        finally:
            worker.kill()
