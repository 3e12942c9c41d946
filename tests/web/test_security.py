"""Who may do what over HTTP: logins, tokens, roles, other sites, other hosts, and what is hidden."""

import re
import socket
import stat
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from starlette.testclient import TestClient

from holdfast import Cancel, Holdfast
from holdfast.cli.commands.web import make_server
from holdfast.errors import InvalidInput
from holdfast.testing import drain
from holdfast.web import Identity, Role, Users, auth, identity, trusted_header
from holdfast.web.api import ENDPOINTS
from holdfast.web.app import CSRF_HEADER
from holdfast.web.server import WebServer, is_loopback, require_authentication
from support.web_users import PASSWORD

Connect = Callable[..., TestClient]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def log_in(client: TestClient, name: str, password: str = PASSWORD) -> Any:
    return client.post("/login", json={"name": name, "password": password})


# --- without authentication -----------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8520", "127.0.0.1.evil.example", "", "10.0.0.1"])
def test_another_host_name_is_refused(api: TestClient, host: str) -> None:
    """A page whose name was rebound to 127.0.0.1 sends its own name as Host."""
    response = api.get("/jobs", headers={"host": host})
    assert (response.status_code, response.json()["code"]) == (421, "WrongHost")


def test_the_command_line_allows_only_known_hosts_on_loopback_whatever_authenticates(
    served: Holdfast, users: Users
) -> None:
    options: dict[str, Any] = {"auth": str(users.path), "redact": ()}
    server = make_server(served, 0, "127.0.0.1", (), **options).start()
    behind_proxy = make_server(served, 0, "127.0.0.1", ("jobs.example.org",), **options).start()

    def status(server: WebServer, host: str) -> int:
        return httpx.get(f"{server.url}api/v1/jobs", headers={"host": host} | bearer("viewer")).status_code

    try:
        assert [status(server, host) for host in ("localhost", "jobs.example.org")] == [200, 421]
        assert [status(behind_proxy, host) for host in ("jobs.example.org", "evil.example")] == [200, 421]
    finally:
        server.close()
        behind_proxy.close()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8520", "127.0.0.1:1", "[::1]:8520"])
def test_loopback_names_are_accepted(api: TestClient, host: str) -> None:
    assert api.get("/jobs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_changes_from_other_sites_are_refused(api: TestClient, headers: dict[str, str]) -> None:
    response = api.post("/queues/q/messages", json={"body": 1}, headers=headers)
    assert (response.status_code, response.json()["code"]) == (403, "WrongOrigin")
    assert api.get("/jobs").json()["items"] == []


def test_a_refusal_is_read_by_a_client_that_still_sends(served: Holdfast) -> None:
    """If the server closed the connection at once, the rest of the body would reset it, and the answer be lost."""
    server = WebServer(served.web(), port=0).start()
    try:
        with socket.create_connection((server.host, server.port)) as client:
            head = (
                f"POST /api/v1/queues/q/messages HTTP/1.1\r\nHost: {server.host}\r\nOrigin: http://evil.example\r\n"
            )
            client.sendall(f"{head}Content-Length: 2000000\r\nConnection: close\r\n\r\n".encode())
            client.sendall(b" " * 2_000_000)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 403") and answer.endswith(b'"code":"WrongOrigin"}')
    finally:
        server.close()


def test_changes_from_our_own_page_are_accepted(api: TestClient) -> None:
    headers = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert api.post("/queues/q/messages", json={"body": 1}, headers=headers).status_code == 201


def test_a_form_of_another_site_cannot_send(api: TestClient) -> None:
    """What a page may send elsewhere without asking: a form, and no JSON."""
    assert api.post("/queues/q/pause", data={"reason": "x"}).status_code == 415
    assert api.post("/queues/q/pause").status_code == 415


@pytest.mark.parametrize("path", ["/jobs", "/nothing", "/openapi.json"])
def test_every_response_has_the_security_headers(api: TestClient, path: str) -> None:
    headers = api.get(path).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] in ("no-store", "no-cache")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "jobs.example.org"])
def test_other_addresses_need_authentication(host: str, users: Users) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidInput, match="needs authentication"):
        require_authentication(host, None)
    require_authentication(host, users)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_addresses_do_not(host: str) -> None:
    require_authentication(host, None)


# --- logins and tokens ----------------------------------------------------------------------------


def test_without_a_login_nothing_is_answered(connect: Connect, users: Users) -> None:
    client = connect(auth=users)
    for one in ENDPOINTS:
        path = re.sub(r"\{id:int\}", "1", one.path).replace("{queue}", "q").replace("{name}", "n")
        response = client.request(one.method, path, json={} if one.body else None)
        assert response.status_code == 401, (one.method, path)
        assert response.json()["code"] == "LoginNeeded"
    assert [client.get(path).status_code for path in ("/me", "/stream", "/openapi.json")] == [401] * 3


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_do_not_get(connect: Connect, users: Users) -> None:
    response = log_in(connect(auth=users), "operator")
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    tls = log_in(connect(auth=users, base_url="https://jobs.example.org/api/v1"), "operator")
    assert "secure" in tls.headers["set-cookie"].lower()
    assert response.json()["csrf"] not in cookie


def test_a_page_asks_for_its_data_at_once_unless_a_login_is_needed(connect: Connect, users: Users) -> None:
    def links(client: TestClient, path: str) -> set[str]:
        found = re.findall(r'<link rel="(?:modulepreload|preload)"[^>]* href="([^"]+)"', client.get(path).text)
        return {one for one in found if "/pages/" in one or "/api/" in one}

    anyone, known = connect(base_url="http://localhost"), connect(base_url="http://localhost", auth=users)
    assert links(anyone, "/") == {"/static/pages/overview.js", "/api/v1/me", "/api/v1/stats"}
    assert links(anyone, "/jobs/7") == {"/static/pages/job.js", "/api/v1/me"}
    assert links(anyone, "/queues") == {"/static/pages/queues.js", "/api/v1/me"}
    assert links(anyone, "/nowhere/else") == links(anyone, "/lib") == {"/api/v1/me"}
    assert links(known, "/") == {"/static/pages/overview.js"}
    assert known.post("/api/v1/login", json={"name": "viewer", "password": PASSWORD}).status_code == 200
    assert links(known, "/") == links(anyone, "/")


def test_a_session_reads_and_changes_only_with_its_csrf_token(connect: Connect, users: Users) -> None:
    client = connect(auth=users)
    csrf = log_in(client, "operator").json()["csrf"]
    assert client.get("/me").json() == {"name": "operator", "role": "operator", "csrf": csrf, "read_only": False}
    assert client.get("/jobs").status_code == 200
    for headers in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: csrf + "x"}):
        refused = client.post("/queues/q/messages", json={"body": 1}, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "WrongCSRFToken")
    assert client.post("/queues/q/messages", json={"body": 1}, headers={CSRF_HEADER: csrf}).status_code == 201
    assert client.post("/logout", json={}, headers={CSRF_HEADER: csrf}).status_code == 200
    assert client.get("/me").status_code == 401


def test_a_wrong_password_and_an_unknown_name_look_the_same(connect: Connect, users: Users) -> None:
    client = connect(auth=users)
    wrong, unknown = log_in(client, "operator", "wrong password"), log_in(client, "mallory")
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.json() == unknown.json()


def test_failed_logins_are_slowed_down(connect: Connect, users: Users) -> None:
    client = connect(auth=users)
    statuses = [log_in(client, "operator", "wrong password").status_code for _ in range(4)]
    assert statuses == [401, 401, 401, 429]
    right = log_in(client, "operator")
    assert right.status_code == 429 and int(right.headers["retry-after"]) >= 1


def test_the_delay_doubles_and_ends() -> None:
    now = [0.0]
    attempts = auth.Attempts(lambda: now[0])
    for _ in range(auth.FREE_FAILURES + 3):
        attempts.failed("ada")
    assert attempts.seconds_left("ada", "bob") == auth.FIRST_DELAY * 8
    now[0] += auth.FIRST_DELAY * 8
    assert attempts.seconds_left("ada") == 0
    for _ in range(100):
        attempts.failed("ada")
    assert attempts.seconds_left("ada") == auth.LONGEST_DELAY
    attempts.succeeded("ada")
    assert attempts.seconds_left("ada") == 0


def test_a_removed_user_loses_access_at_once(connect: Connect, users: Users) -> None:
    client = connect(auth=users)
    log_in(client, "operator")
    with users.edit() as found:
        del found["operator"]
    assert client.get("/jobs").status_code == 401
    assert client.get("/jobs", headers=bearer("operator")).status_code == 401


def test_a_new_password_ends_the_sessions_of_the_old_one(connect: Connect, users: Users) -> None:
    """Whoever has stolen a session is out, and so is a former user of a name that is used again."""
    client, other = connect(auth=users), connect(auth=users)
    log_in(client, "operator")
    log_in(other, "viewer")
    with users.edit() as found:
        found["operator"] = auth.User("operator", auth.hash_password("another password"), {})
    assert client.get("/jobs").status_code == 401
    assert other.get("/jobs").status_code == 200


def test_the_users_file_holds_no_secret_and_is_private(users: Users) -> None:
    text = users.path.read_text()
    assert PASSWORD not in text and '"test": "operator"' not in text
    assert stat.S_IMODE(users.path.stat().st_mode) == 0o600
    assert users.check_password("operator", PASSWORD) == Identity("operator", Role.operator)
    assert users.check_password("operator", PASSWORD + " ") is None
    assert users.check_token("operator") == Identity("operator", Role.operator)
    assert users.check_token("") is None


@pytest.mark.parametrize("text", ["", "[]", '{"ada": {"role": "king"}}', "\xff"])
def test_a_damaged_users_file_lets_no_one_in(connect: Connect, users: Users, text: str) -> None:
    client = connect(auth=users)
    users.path.write_bytes(text.encode("latin-1"))
    assert client.get("/jobs", headers=bearer("admin")).status_code == 503
    with pytest.raises(InvalidInput, match="is not a users file"):
        users.read()


def test_a_missing_users_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="web-user add"):
        Users(tmp_path / "none.json").read()


@pytest.mark.parametrize("password", ["short", "", "x" * 2000, None, 7])
def test_weak_passwords_are_refused(password: Any) -> None:
    with pytest.raises(InvalidInput, match="password"):
        auth.hash_password(password)


# --- roles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_each_endpoint_needs_its_role(connect: Connect, users: Users, endpoint: Any) -> None:
    client = connect(auth=users)
    path = endpoint.path.replace("{id:int}", "1").replace("{queue}", "q").replace("{name}", "n")
    for name, role in Role.__members__.items():
        body = {"json": {}} if endpoint.body is not None else {}
        response = client.request(endpoint.method, path, headers=bearer(name), **body)
        assert (response.status_code == 403) == (role < endpoint.role), (name, response.text)


def test_reading_is_for_viewers_and_deleting_for_admins() -> None:
    assert {one.role for one in ENDPOINTS if one.method == "GET"} == {Role.viewer}
    assert {one.role for one in ENDPOINTS if one.method == "DELETE"} == {Role.admin}
    assert all(one.role > Role.viewer for one in ENDPOINTS if one.method != "GET")


def test_a_browser_keeps_no_statistics_of_one_user_for_another(connect: Connect, users: Users) -> None:
    client = connect(auth=users, hide_args=True)
    kept = client.get("/stats", headers=bearer("operator"))
    assert kept.headers["cache-control"] == "private, no-cache"
    etag = {"if-none-match": kept.headers["etag"]}
    assert client.get("/stats", headers=bearer("viewer") | etag).status_code == 200


def test_a_bug_is_answered_with_the_security_headers_too(
    served: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(served.jobs), "list", fail)
    client = TestClient(served.web(), base_url="http://localhost", raise_server_exceptions=False)
    response = client.get("/api/v1/jobs")
    assert (response.status_code, response.json()["code"]) == (500, "InternalError")
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"


def test_an_endless_path_or_pattern_is_answered(api: TestClient, served: Holdfast) -> None:
    """Python makes no int of 5,000 digits. A pattern of many stars must not try all ways to split a name."""
    served.tasks["add"].using(queue="a" * 120).enqueue(1, 2)
    assert api.get("/jobs/" + "9" * 5000).status_code == 414
    for name in ("queue", "task"):
        assert api.get("/jobs", params={name: "*a" * 60 + "*b"}).json()["items"] == []
    assert len(api.get("/jobs", params={"queue": "*a" * 60 + "*"}).json()["items"]) == 1
    assert api.get("/jobs", params={"task": ",".join(["a*"] * 4000)}).status_code == 400


def test_a_read_only_server_changes_nothing_for_anyone(connect: Connect, users: Users, served: Holdfast) -> None:
    job = served.jobs.enqueue("add", {"a": 1, "b": 2}).id
    served.operations.start("cancel", queue="math")
    client = connect(auth=users, read_only=True, hide_args=True)
    admin = bearer("admin")
    for one in ENDPOINTS:
        if one.method != "GET":
            path = one.path.replace("{id:int}", str(job)).replace("{queue}", "math").replace("{name}", "x")
            refused = client.request(one.method, path.replace("{id}", "x"), json={}, headers=admin)
            assert (refused.status_code, refused.json()["code"]) == (403, "ReadOnly"), one.path
    assert client.get(f"/jobs/{job}", headers=admin).json()["args"] == {"a": 1, "b": 2}, "roles stay as they are"
    assert client.get("/me", headers=admin).json()["read_only"] is True
    assert served.jobs.get(job).status == "ready", "bulk operations are left to other processes, too"


def test_actions_are_logged_with_the_person(connect: Connect, users: Users, served: Holdfast) -> None:
    client = connect(auth=users)
    body = {"task": "add", "args": {"a": 1, "b": 2}, "delay": 60}
    job = client.post("/jobs", json=body, headers=bearer("operator")).json()["id"]
    client.post(f"/jobs/{job}/cancel", json={"reason": "typo"}, headers=bearer("admin"))
    log = [(one.event, one.actor) for one in served.observe.last_events(10)]
    assert log == [("enqueued", "operator"), ("cancelled", "admin")]


# --- authentication by others ---------------------------------------------------------------------


def test_a_function_may_authenticate(connect: Connect) -> None:
    client = connect(
        auth=lambda request: identity("ada", "operator") if request.headers.get("x-key") == "1" else None
    )
    assert client.get("/me").status_code == 401
    assert client.get("/me", headers={"x-key": "1"}).json()["role"] == "operator"


def test_a_header_of_a_proxy_may_be_trusted(connect: Connect) -> None:
    client = connect(auth=trusted_header("x-user", role_header="x-role"))
    assert client.get("/me").status_code == 401
    assert client.get("/me", headers={"x-user": "ada"}).json()["role"] == "viewer"
    assert client.get("/me", headers={"x-user": "ada", "x-role": "admin"}).json()["role"] == "admin"
    assert client.get("/me", headers={"x-user": "ada", "x-role": "king"}).status_code == 401


# --- payloads -------------------------------------------------------------------------------------


def test_payloads_are_hidden_from_viewers(connect: Connect, users: Users, served: Holdfast) -> None:
    job = served.jobs.enqueue("add", {"a": 1, "b": 2}).id
    drain(served)
    client = connect(auth=users, hide_args=True)
    seen = client.get(f"/jobs/{job}", headers=bearer("viewer")).json()
    assert (seen["args"], seen["result"], seen["hidden"]) == (None, None, True)
    assert client.get(f"/jobs/{job}", headers=bearer("operator")).json()["args"] == {"a": 1, "b": 2}


def test_error_messages_are_hidden_with_the_payloads(connect: Connect, users: Users, served: Holdfast) -> None:
    """An exception often has an argument in its message."""

    @served.task(max_attempts=1)
    def mail(to: str) -> str:
        raise ValueError(f"cannot send to {to}")

    @served.task(max_attempts=2)
    def call(to: str, wanted: str) -> Any:
        if wanted == "cancel":
            return Cancel(f"{to} is gone")
        raise ValueError(to)

    job = mail.enqueue("ada@example.org").id
    others = [call.enqueue("ada@example.org", one).id for one in ("cancel", "retry")]
    served.external("approve", {"by": "ada@example.org"})
    served.operations.start("cancel", args={"to": "ada@example.org"})  # changes nothing: the job will have failed
    drain(served, raise_errors=False)
    failure = next(one for one in served.observe.failures() if one.task == "mail")
    assert "ada@example.org" in (failure.traceback or "")
    client = connect(auth=users, hide_args=True)
    gets = [one.path for one in ENDPOINTS if one.method == "GET"]
    paths = dict.fromkeys(path.replace("{id:int}", str(id)) for id in (job, *others) for path in gets)
    shown = []
    for path in paths:
        path = path.replace("{fingerprint}", str(failure.fingerprint)).replace("{queue}", "default")
        assert "ada@example.org" not in client.get(path, headers=bearer("viewer")).text, path
        if "ada@example.org" in client.get(path, headers=bearer("operator")).text:
            shown.append(path)
    assert {f"/jobs/{id}{part}" for id in (job, others[0]) for part in ("", "/explain")} <= set(shown)
    assert {f"/jobs/{job}/history", "/failures", "/stats", "/inbox", "/operations"} <= set(shown)


def test_values_of_matching_names_are_redacted_for_everyone(connect: Connect, served: Holdfast) -> None:
    @served.task
    def login(user: str, options: dict[str, Any]) -> None: ...

    job = login.enqueue("ada", {"Password": "hunter2", "list": [{"api_token": "t", "n": 1}]}).id
    args = connect(redact=["password", "token$"]).get(f"/jobs/{job}").json()["args"]
    assert args["options"] == {"Password": "•••", "list": [{"api_token": "•••", "n": 1}]}
    assert args["user"] == "ada"


HOSTILE = ["<script>alert(1)</script>", "\x1b[31m", "\u202e", "a\x00b", "</script>", "x" * 100_000]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_strings_come_back_as_they_are(api: TestClient, text: str) -> None:
    sent = api.post("/queues/q/messages", json={"body": {"text": text}}).json()
    response = api.get(f"/jobs/{sent['id']}")
    assert response.json()["args"] == {"text": text}
    assert response.headers["content-type"] == "application/json"


# --- what is logged, and what is installed --------------------------------------------------------


def test_no_secret_is_in_a_url_or_a_log(
    connect: Connect, users: Users, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    client = connect(auth=users)
    csrf = log_in(client, "operator").json()["csrf"]
    cookie = client.cookies["holdfast_session"]
    log_in(client, "operator", "a wrong password")
    client.post("/queues/q/messages", json={"body": "the payload"}, headers={CSRF_HEADER: csrf})
    client.get("/jobs", headers=bearer("hf_a-wrong-token"))
    client.get("/jobs/1", headers=bearer("admin"))
    users.path.write_text("{")
    client.get("/jobs", headers=bearer("hf_a-wrong-token"))
    said = caplog.text + "".join(capfd.readouterr())
    for secret in (PASSWORD, "a wrong password", csrf, cookie, "hf_a-wrong-token", "the payload"):
        assert secret not in said
    assert "is not a users file" in said, "what is logged is seen here"


def test_a_token_or_password_in_a_url_is_not_taken(connect: Connect, users: Users) -> None:
    client = connect(auth=users)
    for query in ("token=admin", "access_token=admin", "authorization=Bearer admin", "holdfast_session=admin"):
        assert client.get(f"/jobs?{query}").status_code == 401
    assert client.get(f"/login?name=admin&password={PASSWORD}").status_code in (404, 405)


def test_every_change_is_in_the_log_with_the_person_and_the_reason(
    connect: Connect, users: Users, served: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each endpoint that takes a reason."""
    monkeypatch.setattr(type(served.operations), "do_some", lambda _: 60.0)  # so that there is something to stop
    client = connect(auth=users)
    served.schedules.add("nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    add = served.tasks["add"]
    with served.batch() as batch:
        add.using(batch=batch).enqueue(1, 2)
    failed = add.enqueue(1, 2).id
    served.jobs.fail(failed, "REJECTED:TEST")
    running = served.operations.start("cancel", queue="none").id
    jobs = {
        "/jobs/{id:int}/retry": failed,
        "/jobs/{id:int}/cancel": add.enqueue(1, 2).id,
        "/jobs/{id:int}/run-now": add.using(delay=60).enqueue(1, 2).id,
        "/jobs/{id:int}/complete": add.enqueue(1, 2).id,
        "/jobs/{id:int}/fail": add.enqueue(1, 2).id,
        "/jobs/{id:int}": add.using(delay=60).enqueue(1, 2).id,
        "/batches/{id:int}/cancel": batch.id,
        "/batches/{id:int}/retry": batch.id,
        "/operations/{id:int}/stop": running,
    }
    more: dict[str, dict[str, Any]] = {
        "/jobs": {"task": "add", "args": {"a": 1, "b": 2}},
        "/jobs/{id:int}/fail": {"code": "REJECTED:X"},
        "/operations": {"action": "cancel", "ids": [failed]},
    }
    taking = [one for one in ENDPOINTS if one.body is not None and "reason" in one.body.__struct_fields__]
    taking.sort(key=lambda one: (one.path.endswith("retry") and "batches" in one.path, one.path.endswith("resume")))
    assert len(taking) >= 13
    for number, one in enumerate(taking):
        path = one.path.replace("{id:int}", str(jobs.get(one.path, 1))).replace("{queue}", "q")
        if one.path == "/batches/{id:int}/retry":
            served.jobs.retry(batch=batch.id, status="cancelled")
            for job in served.jobs.list(batch=batch.id):
                served.jobs.fail(job.id, "REJECTED:TEST")
        body = {"reason": f"reason {number}"} | more.get(one.path, {})
        if "{id}" in one.path or (one.path not in jobs and "{id:int}" in one.path):
            continue  # of a page that tests it itself
        response = client.request(one.method, path.replace("{name}", "nightly"), json=body, headers=bearer("admin"))
        assert response.status_code < 300, (path, response.text)
        log = {(event.actor, event.detail.get("reason")) for event in served.observe.last_events(5)}
        assert ("admin", f"reason {number}") in log, path


def packages(extra: str) -> set[str]:
    """Return all packages that `pip install 'holdfast[extra]'` installs, with those that they need in turn."""
    found: set[str] = set()
    left = [("holdfast", extra)]
    while left:
        name, part = left.pop()
        for text in requires(name) or []:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": part}):
                left += [
                    (one.name, more)
                    for more in ("", *one.extras)
                    if one.name.lower().replace("_", "-") not in found or more
                ]
                found.add(one.name.lower().replace("_", "-"))
    return found


def test_the_extra_brings_six_packages() -> None:
    """Counted besides Holdfast and the eight that it needs itself. Newer versions of Python need fewer."""
    core = packages("")
    assert core <= {"msgspec", "cronsim", "click", "rich", "markdown-it-py", "mdurl", "pygments", "inotify-simple"}
    assert packages("web") - core <= {"starlette", "anyio", "idna", "typing-extensions", "uvicorn", "h11"}
    assert {"starlette", "uvicorn"} <= packages("web")
