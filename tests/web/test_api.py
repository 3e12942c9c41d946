"""The HTTP API: its shapes, its errors, and its OpenAPI document."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate as validate_openapi
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from holdfast import Holdfast
from holdfast.testing import drain
from holdfast.web import Users
from holdfast.web.api import ENDPOINTS, Endpoint


def problem(response: Any) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    assert body["type"] == f"urn:holdfast:{body['code']}"
    assert body["detail"]
    return response.status_code, body["code"]


def enqueue(api: TestClient, a: int = 1, **more: Any) -> int:
    response = api.post("/jobs", json={"task": "add", "args": {"a": a, "b": 2}, **more})
    assert response.status_code == 201, response.text
    found: int = response.json()["id"]
    return found


def test_a_job_is_enqueued_listed_run_and_read(api: TestClient, served: Holdfast) -> None:
    first = enqueue(api)
    second = enqueue(api, 5, priority=7, tags=["vip"])
    listed = api.get("/jobs", params={"status": "ready,running", "limit": 1}).json()
    assert [one["id"] for one in listed["items"]] == [second]
    older = api.get("/jobs", params={"status": "ready", "limit": 1, "cursor": listed["next"]}).json()
    assert [one["id"] for one in older["items"]] == [first]
    assert api.get("/jobs", params={"tag": "vip"}).json()["items"][0]["priority"] == 7
    drain(served)
    job = api.get(f"/jobs/{second}").json()
    assert (job["status"], job["args"], job["result"]) == ("succeeded", {"a": 5, "b": 2}, 7)
    names = [entry["name"] for entry in api.get(f"/jobs/{second}/history").json()["items"]]
    assert names[0] == "enqueued" and "succeeded" in names
    assert "succeeded" in api.get(f"/jobs/{second}/explain").json()["reason"]


def test_who_enqueued_a_job_and_why_is_in_the_log(api: TestClient) -> None:
    id = api.post("/jobs", json={"task": "add", "args": {"a": 1, "b": 2}, "reason": "by request"}).json()["id"]
    (enqueued,) = api.get(f"/jobs/{id}/history").json()["items"]
    assert enqueued["detail"]["reason"] == "by request"


def test_an_idempotency_key_is_the_key_of_the_job(api: TestClient, served: Holdfast) -> None:
    body = {"task": "add", "args": {"a": 1, "b": 2}}
    answers = [api.post("/jobs", json=body, headers={"Idempotency-Key": "k1"}).json() for _ in range(3)]
    assert [one["deduplicated"] for one in answers] == [False, True, True]
    assert len({one["id"] for one in answers}) == 1
    assert served.jobs.get(answers[0]["id"]).key == "k1"


def test_messages_are_sent_received_and_settled(api: TestClient) -> None:
    assert api.post("/queues/in box/messages", json={"body": {"n": 1}, "delay": 0}).json() == {"id": 1}
    api.post("/queues/in box/messages", json={"body": None})
    received = api.post("/queues/in box/receive", json={"limit": 2, "visibility": 30, "wait": 20}).json()
    assert received["items"] == [{"id": 1, "attempt": 1, "body": {"n": 1}}, {"id": 2, "attempt": 1, "body": None}]
    assert api.post("/queues/in box/receive", json={}).json()["items"] == []
    assert api.post("/queues/in box/messages/1/extend", json={"attempt": 1, "seconds": 60}).json() == {"ok": True}
    assert api.post("/queues/in box/messages/1/ack", json={"attempt": 1}).json() == {"ok": True}
    assert problem(api.post("/queues/in box/messages/1/ack", json={"attempt": 1})) == (409, "LeaseLost")
    assert api.post("/queues/in box/messages/2/release", json={"attempt": 1}).json() == {"ok": True}
    assert problem(api.post("/queues/in box/messages/2/extend", json={"attempt": 1, "seconds": 1}))[0] == 409
    assert problem(api.post("/queues/other/messages/2/ack", json={"attempt": 2}))[0] == 409
    assert api.post("/queues/in box/receive", json={}).json()["items"][0]["attempt"] == 2


def test_a_name_may_have_a_slash_in_it(connect: Callable[..., TestClient], served: Holdfast) -> None:
    """As %2F: the page encodes names so."""
    served.schedules.add("eu/nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    for mount in ("", "/admin"):
        site = Starlette(routes=[Mount(mount, served.web())]) if mount else served.web()
        client = TestClient(site, base_url=f"http://localhost{mount}/api/v1")
        assert client.post("/queues/eu%2Fmail/messages", json={"body": 1}).status_code == 201
        assert client.get("/queues/eu%2Fmail").json()["ready"] == 1
        (item,) = client.post("/queues/eu%2fmail/receive", json={}).json()["items"]
        assert client.post(f"/queues/eu%2Fmail/messages/{item['id']}/ack", json={"attempt": 1}).status_code == 200
        assert client.post("/schedules/eu%2Fnightly/pause", json={}).status_code == 200
        assert problem(client.post("/queues/eu/mail/messages", json={"body": 1})) == (404, "NotFound")
        assert problem(client.get("/queues%2Fx")) == (404, "NotFound")
    assert served.jobs.get(1).queue == "eu/mail"


def test_a_long_poll_ends_when_a_message_comes(api: TestClient, served: Holdfast) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(api.post("/queues/q/receive", json={"wait": 60}).json()))
    waiting.start()
    served.queue("q").send("hello")
    waiting.join()
    assert got[0]["items"][0]["body"] == "hello"


def test_a_client_that_leaves_a_long_poll_takes_no_message_with_it(served: Holdfast) -> None:
    """A client whose timeout is shorter than its wait would else spend one delivery of a message after the other."""
    body = json.dumps({"wait": 5}).encode()
    path = "/api/v1/queues/q/receive"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost"), (b"content-type", b"application/json")], "scheme": "http"}
    told = iter([{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}])
    said: list[Any] = []

    async def receive() -> Any:
        return next(told)

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(served.web()(scope, receive, send))
    assert said[0]["status"] != 200, "it has waited for nobody"
    served.queue("q").send("hello")
    message = served.queue("q").receive()
    assert message is not None and message.attempt == 1


def test_operators_act_in_their_name_and_with_their_reason(api: TestClient, served: Holdfast) -> None:
    one, two, three, four = (enqueue(api, number, delay=60) for number in range(4))
    assert api.post(f"/jobs/{one}/run-now", json={"reason": "urgent"}).json() == {"ok": True}
    assert api.post(f"/jobs/{two}/cancel", json={"reason": "wrong"}).json() == {"ok": True}
    assert api.post(f"/jobs/{two}/cancel", json={}).json() == {"ok": False}
    assert api.post(f"/jobs/{two}/retry", json={"attempts": 3}).json() == {"ok": True}
    assert api.post(f"/jobs/{three}/complete", json={"result": 12, "reason": "by hand"}).json() == {"ok": True}
    assert api.post(f"/jobs/{four}/fail", json={"code": "REJECTED:BUDGET", "detail": "too much"}).json()["ok"]
    assert api.get(f"/jobs/{three}").json()["result"] == 12
    assert api.get(f"/jobs/{four}").json()["error_code"] == "REJECTED:BUDGET"
    assert api.delete(f"/jobs/{four}").json() == {"ok": True}
    assert problem(api.get(f"/jobs/{four}")) == (404, "JobNotFound")
    events = {(event.event, event.actor, event.detail.get("reason")) for event in served.observe.last_events(50)}
    assert ("cancelled", "web", "wrong") in events and ("enqueued", "web", None) in events


def test_queues_and_schedules_are_paused_and_resumed(api: TestClient, served: Holdfast) -> None:
    served.schedules.add("nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    for place in ("/queues/math", "/schedules/nightly"):
        assert api.post(f"{place}/pause", json={"reason": "deploy"}).json() == {"ok": True}
        assert api.post(f"{place}/pause", json={}).json() == {"ok": False}
        assert api.post(f"{place}/resume", json={}).json() == {"ok": True}
    assert problem(api.post("/schedules/none/pause", json={})) == (404, "ScheduleNotFound")
    assert api.get("/queues/math").json()["paused"] is False


def test_batches_are_listed_cancelled_and_retried(api: TestClient, served: Holdfast) -> None:
    with served.batch() as batch:
        ids = served.tasks["add"].using(batch=batch).enqueue_many([{"a": 1, "b": 2}] * 3)
    served.jobs.fail(ids[0], "REJECTED:TEST")
    (listed,) = api.get("/batches", params={"state": "running"}).json()["items"]
    assert (listed["id"], listed["total"], listed["failed"], listed["state"]) == (batch.id, 3, 1, "running")
    assert len(api.get("/jobs", params={"batch": batch.id}).json()["items"]) == 3
    assert api.post(f"/batches/{batch.id}/retry", json={"reason": "again"}).json() == {"jobs": 1}
    assert api.post(f"/batches/{batch.id}/cancel", json={}).json() == {"jobs": 3}
    assert problem(api.post("/batches/99/cancel", json={})) == (404, "BatchNotFound")


def test_a_schedule_is_run_now(api: TestClient, served: Holdfast) -> None:
    served.schedules.add("nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    made = api.post("/schedules/nightly/run", json={"reason": "by hand"})
    assert (made.status_code, served.jobs.get(made.json()["id"]).task) == (201, "add")


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/nothing", None, (404, "NotFound")),
        ("PUT", "/jobs", {}, (405, "MethodNotAllowed")),
        ("GET", "/jobs/0", None, (400, "InvalidInput")),
        ("GET", "/jobs?limit=x", None, (400, "InvalidInput")),
        ("GET", "/jobs?limit=0", None, (400, "InvalidInput")),
        ("GET", "/jobs?colour=red", None, (400, "InvalidInput")),
        ("GET", "/jobs?status=lost", None, (400, "InvalidInput")),
        ("GET", "/jobs?cursor=1", None, (400, "InvalidInput")),
        ("GET", "/jobs?created_after=soon", None, (400, "InvalidInput")),
        ("GET", "/throughput?step=1", None, (400, "InvalidInput")),
        ("GET", "/attempts?since=nan", None, (400, "InvalidInput")),
        ("GET", "/attempts?since=1e300", None, (400, "InvalidInput")),
        ("GET", "/events?after=1&before=2", None, (400, "InvalidInput")),
        ("GET", "/stream?topics=gossip", None, (400, "InvalidInput")),
        ("POST", "/jobs", {"task": "ad", "args": {}}, (400, "InvalidInput")),
        ("POST", "/jobs", {"task": "add", "args": {"a": "x"}}, (400, "InvalidArguments")),
        ("POST", "/jobs", {"task": "add", "args": {"a": 1, "b": 2}, "queue": ""}, (400, "InvalidInput")),
        ("POST", "/jobs", {"task": "add", "conn": 1}, (400, "InvalidInput")),
        ("POST", "/jobs", [], (400, "InvalidInput")),
        ("POST", "/queues/q/receive", {"limit": 0}, (400, "InvalidInput")),
        ("POST", "/queues/q/receive", {"visibility": -1}, (400, "InvalidInput")),
        ("POST", "/queues/q/messages", {}, (400, "InvalidInput")),
    ],
)
def test_bad_requests_are_told_what_is_wrong(
    api: TestClient, method: str, path: str, body: Any, expected: tuple[int, str]
) -> None:
    assert problem(api.request(method, path, json=body)) == expected


@pytest.mark.parametrize(
    ("content", "kind", "expected"),
    [
        (b"{", "application/json", 400),
        (b'{"body": NaN}', "application/json", 400),
        (b'{"body": ' + b"[" * 500 + b"]" * 500 + b"}", "application/json", 400),
        (b'{"body": "\xff"}', "application/json", 400),
        (b'{"body": 1}', "text/plain", 415),
        (b"body=1", "application/x-www-form-urlencoded", 415),
        (b'{"body": "' + b"x" * 2**21 + b'"}', "application/json", 413),
    ],
)
def test_hostile_bodies_are_refused(api: TestClient, content: bytes, kind: str, expected: int) -> None:
    response = api.post("/queues/q/messages", content=content, headers={"content-type": kind})
    assert problem(response)[0] == expected


def test_statistics_have_an_etag(api: TestClient, served: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.app.STATS_AGE_SECONDS", 10**9)
    first = api.get("/stats")
    assert api.get("/stats", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    served.queue("q").send(1)
    again = api.get("/stats", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 200
    assert again.json()["counts"]["items"][0]["count"] == 1


# --- the document ---------------------------------------------------------------------------------


@pytest.fixture
def openapi(api: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").json()
    return found


def test_the_openapi_document_is_valid(openapi: dict[str, Any]) -> None:
    validate_openapi(openapi)  # type: ignore[arg-type]
    assert openapi["openapi"] == "3.1.0"


def test_every_endpoint_is_described(openapi: dict[str, Any]) -> None:
    described = {(method.upper(), path) for path, item in openapi["paths"].items() for method in item}
    assert described == {(one.method, "/api/v1" + re.sub(r":int", "", one.path)) for one in ENDPOINTS}
    assert all(one.summary for one in ENDPOINTS)
    log, stats = (openapi["paths"][f"/api/v1/{name}"]["get"] for name in ("events", "stats"))
    assert set(log["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "304" in stats["responses"]


def check(openapi: dict[str, Any], endpoint: Endpoint, data: Any) -> None:
    path = "/api/v1" + endpoint.path.replace(":int", "")
    answer = openapi["paths"][path][endpoint.method.lower()]["responses"][str(endpoint.status)]
    schema = answer["content"]["application/json"]["schema"] | {"components": openapi["components"]}
    jsonschema.Draft202012Validator(schema).validate(data)


def test_every_response_fits_the_document(api: TestClient, served: Holdfast, openapi: dict[str, Any]) -> None:
    """All that can be read, of a database that has some of everything."""

    @served.task(max_attempts=1)
    def explode() -> None:
        raise RuntimeError("boom")

    job = enqueue(api)
    explode.enqueue()
    served.queue("q").send({"n": 1})
    served.schedules.add("nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    drain(served, raise_errors=False)
    served.operations.start("retry", task="explode")
    checked = 0
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            path = endpoint.path.replace("{id:int}", str(job)).replace("{queue}", "math").replace("{name}", "nightly")
            response = api.get(path)
            assert response.status_code == 200, response.text
            check(openapi, endpoint, response.json())
            checked += 1
    assert checked >= 22
    wrong = {"items": [{"id": "seven"}]}
    with pytest.raises(jsonschema.ValidationError):
        check(openapi, next(one for one in ENDPOINTS if one.path == "/jobs"), wrong)


def test_the_inbox_lists_payloads_and_is_settled_by_id(api: TestClient, served: Holdfast) -> None:
    job = served.external("approve", {"amount": 7}, queue="people", tags=["vip"])
    (item,) = api.get("/inbox").json()["items"]
    assert (item["id"], item["task"], item["args"], item["tags"]) == (job.id, "approve", {"amount": 7}, ["vip"])
    assert api.post(f"/jobs/{job.id}/fail", json={"code": "REJECTED", "reason": "too much"}).json() == {"ok": True}
    assert api.get("/inbox").json()["items"] == []


def test_payloads_of_the_inbox_are_hidden_from_viewers(
    connect: Callable[..., TestClient], served: Holdfast, users: Users
) -> None:
    served.external("approve", {"amount": 7})
    client = connect(auth=users, hide_args=True)
    (item,) = client.get("/inbox", headers={"authorization": "Bearer viewer"}).json()["items"]
    assert (item["args"], item["hidden"]) == (None, True)
    (item,) = client.get("/inbox", headers={"authorization": "Bearer operator"}).json()["items"]
    assert item["args"] == {"amount": 7}


def test_the_graph_has_the_chain_the_blockers_and_the_jobs_that_wait(api: TestClient, served: Holdfast) -> None:
    add = served.tasks["add"]
    approval = served.external("approve")
    first = add.using(after=approval).enqueue(1, 2)
    job = add.using(after=[first, approval]).enqueue(3, 4)
    last = add.using(after=job).enqueue(5, 6)
    graph = api.get(f"/jobs/{job.id}/graph").json()
    nodes = {one["id"]: (one["status"], one["external"]) for one in graph["nodes"]}
    assert nodes.keys() == {approval.id, first.id, job.id, last.id}
    assert nodes[approval.id] == ("blocked", True)
    edges = {(one["source"], one["target"], one["kind"]) for one in graph["edges"]}
    assert edges == {
        (approval.id, first.id, "blocks"),
        (approval.id, job.id, "blocks"),
        (first.id, job.id, "blocks"),
        (job.id, last.id, "blocks"),
    }
    assert (graph["more_blockers"], graph["more_waiting"], graph["chain_length"]) == (0, 0, 1)


def test_a_schedule_tells_its_next_times_and_last_runs(api: TestClient, served: Holdfast) -> None:
    served.schedules.add("nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    times = api.get("/schedules/nightly/times").json()
    assert (len(times["upcoming"]), times["runs"]) == (5, [])
    (schedule,) = api.get("/schedules").json()["items"]
    assert (schedule["in_words"], schedule["next_at"]) == ("at 03:00, every day", times["upcoming"][0])
    assert api.get("/schedules/none/times").status_code == 404


def test_workers_are_asked_to_stop_and_the_file_is_vacuumed(api: TestClient, served: Holdfast) -> None:
    assert api.post("/workers/nobody/stop", json={}).json()["code"] == "WorkerNotFound"
    report = api.post("/vacuum", json={"reason": "space"}).json()
    assert (report["full"], report["before_bytes"] >= report["after_bytes"]) == (False, True)
    (event,) = [one for one in served.observe.last_events() if one.event == "vacuumed"]
    assert (event.actor, event.detail["reason"]) == ("web", "space")
    assert api.get("/retention").json()["automatic"] is True
    assert api.get("/tracebacks/none").json() == {"traceback": None}


# --- bulk operations and search -------------------------------------------------------------------


def wait_until_over(api: TestClient, id: int) -> Any:
    while (found := api.get(f"/operations/{id}").json())["state"] == "running":
        pass
    return found


def test_many_jobs_are_counted_and_then_changed_in_the_background(connect: Any, served: Holdfast) -> None:
    with connect() as api:
        ids = [enqueue(api, number) for number in range(5)]
        for id in ids[:4]:
            api.post(f"/jobs/{id}/fail", json={"code": "TIMEOUT:HTTP"})
        some = {"action": "retry", "filters": {"error_code": "TIMEOUT*", "task": "a*"}}
        assert api.post("/operations/count", json=some).json() == {"count": 4, "is_complete": True}
        started = api.post("/operations", json={**some, "reason": "smtp is back"})
        assert (started.status_code, started.json()["matched"]) == (202, 4)
        ended = wait_until_over(api, started.json()["id"])
        assert (ended["state"], ended["changed"], ended["actor"]) == ("finished", 4, "web")
        assert {served.jobs.get(id).status for id in ids} == {"ready"}
        by_ids = api.post("/operations", json={"action": "delete", "ids": ids[:2]}).json()
        assert wait_until_over(api, by_ids["id"])["changed"] == 2
        assert [one["id"] for one in api.get("/operations").json()["items"]] == [by_ids["id"], started.json()["id"]]
        assert api.post(f"/operations/{by_ids['id']}/stop", json={}).json() == {"ok": False}
        assert problem(api.get("/operations/99")) == (404, "OperationNotFound")
        assert problem(api.post("/operations", json={"action": "retry"})) == (400, "InvalidInput")
        assert problem(api.post("/operations", json={"action": "burn", "ids": [1]})) == (400, "InvalidInput")


def test_an_operation_of_a_former_process_is_continued_at_the_start(connect: Any, served: Holdfast) -> None:
    ids = [served.jobs.enqueue("add", {"a": 1, "b": 2}).id for _ in range(3)]
    started = served.operations.start("cancel", task="add", actor="kim")
    with connect():  # no request is made
        while served.operations.is_any_running():
            pass
    assert served.operations.get(started.id).changed == 3
    assert {served.jobs.get(id).status for id in ids} == {"cancelled"}


def test_a_mounted_application_continues_it_with_its_first_request(served: Holdfast) -> None:
    served.jobs.enqueue("add", {"a": 1, "b": 2})
    started = served.operations.start("cancel", task="add")
    site = Starlette(routes=[Mount("/jobs", app=served.web())])  # it starts and ends no mounted application
    with TestClient(site, base_url="http://localhost/jobs/api/v1") as api:  # all requests in one event loop
        assert wait_until_over(api, started.id)["changed"] == 1


def test_only_an_admin_deletes_many(connect: Any, users: Any, served: Holdfast) -> None:
    job = served.jobs.enqueue("add", {"a": 1, "b": 2}).id
    client = connect(auth=users)
    operator, admin = ({"Authorization": f"Bearer {name}"} for name in ("operator", "admin"))
    for path in ("/operations", "/operations/count"):
        refused = client.post(path, json={"action": "delete", "ids": [job]}, headers=operator)
        assert problem(refused) == (403, "NotAllowed")
    assert client.post("/operations", json={"action": "delete", "ids": [job]}, headers=admin).status_code == 202


def test_jobs_are_found_by_patterns_and_arguments(api: TestClient) -> None:
    for number in range(3):
        enqueue(api, number)
    api.post("/queues/inbox/messages", json={"body": {"user": {"name": "ada"}}})

    def found(**query: str) -> list[int]:
        return [one["id"] for one in api.get("/jobs", params=query).json()["items"]]

    assert found(task="ad*") == found(task="a*,x") == [3, 2, 1]
    assert found(queue="m*,inbox") == [4, 3, 2, 1]
    assert found(args='{"user.name": "a*"}') == [4]
    keyed = api.post("/jobs", json={"task": "add", "args": {"a": 1, "b": 2}}, headers={"Idempotency-Key": "7,8"})
    assert found(key="7\\,8") == found(key="none,7\\,8") == [keyed.json()["id"]]
    assert found(key="7,8") == []
    assert found(args='{"a": "2"}', task="add") == [3]
    for args in ("x", "[]", '{"a": 1}', '{"": "x"}'):
        assert problem(api.get("/jobs", params={"args": args})) == (400, "InvalidInput")


def test_who_may_not_see_arguments_may_not_search_for_them(connect: Any, users: Any, served: Holdfast) -> None:
    served.jobs.enqueue("add", {"a": 1, "b": 2})
    client = connect(auth=users, hide_args=True, redact=["^b$"])

    def status(name: str, args: str) -> int:
        headers = {"Authorization": f"Bearer {name}"}
        code: int = client.get("/jobs", params={"args": args}, headers=headers).status_code
        return code

    assert status("viewer", '{"a": "1"}') == 403
    assert status("operator", '{"a": "1"}') == 200
    assert status("admin", '{"b": "2"}') == status("admin", '{"x.b": "*"}') == 400


def test_pages_that_follow_events_share_a_read(api: TestClient, served: Holdfast) -> None:
    live = {"Cache-Control": "max-age=5"}
    assert api.get("/jobs", headers=live).json()["items"] == []
    served.queue("q").send(1)
    assert api.get("/jobs", headers=live).json()["items"] == [], "told again from a moment ago"
    assert len(api.get("/jobs").json()["items"]) == 1, "a program always gets what is stored"
    assert len(api.get("/jobs?limit=9", headers=live).json()["items"]) == 1
    api.post("/queues/q/messages", json={"body": 2})
    assert len(api.get("/jobs", headers=live).json()["items"]) == 2, "a change by this server is seen at once"


def test_what_is_shared_is_not_shared_with_those_who_may_see_less(connect: Any, users: Any, served: Holdfast) -> None:
    job = served.jobs.enqueue("add", {"a": 1, "b": 2}).id
    client = connect(auth=users, hide_args=True)
    for name, hidden in (("operator", False), ("viewer", True), ("admin", False)):
        headers = {"Authorization": f"Bearer {name}", "Cache-Control": "max-age=5"}
        assert client.get(f"/jobs/{job}", headers=headers).json()["hidden"] is hidden
