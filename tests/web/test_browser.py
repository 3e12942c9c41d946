"""The web page in a real Chromium: every page and action, both themes, narrow and wide, checked for accessibility.

Screenshots of each page go to the folder that HOLDFAST_SCREENSHOTS names, to be looked at.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from conftest import PASSWORD
from holdfast import Holdfast
from holdfast.testing import drain
from holdfast.web import Users
from holdfast.web.server import WebServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REQUIRED = "HOLDFAST_REQUIRE_BROWSER" in os.environ
if CHROMIUM is None and not REQUIRED:
    pytest.skip("no Chromium is installed: apt-get install chromium", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE_MS = 60_000  # how long a step may take on a busy machine; none waits for long when it succeeds
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
PAGES = {
    "/": "Overview",
    "/jobs": "Jobs",
    "/queues": "Queues",
    "/tasks": "Tasks",
    "/errors": "Errors",
    "/workers": "Workers",
    "/schedules": "Schedules",
    "/batches": "Batches",
    "/events": "Events",
    "/storage": "Storage",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "no Chromium is installed: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def full(served: Holdfast) -> Holdfast:
    """A database with jobs in all states, errors, a schedule, a paused queue, and hostile names."""

    @served.task(queue="mail", max_attempts=1)
    def explode(text: str) -> None:
        raise RuntimeError(text)

    @served.task(name=HOSTILE[:200])
    def hostile(text: str) -> str:
        return text

    add = served.tasks["add"]
    add.enqueue(1, 2)
    explode.enqueue(HOSTILE)
    hostile.enqueue(HOSTILE)
    drain(served, raise_errors=False)
    add.using(delay=3600, tags=["vip"], key="k").enqueue(3, 4)
    hostile.enqueue("\u202e\x1b[31m" + "x" * 5000)
    served.queue(HOSTILE[:200]).send({"text": HOSTILE, "deep": [[[1, {"a": None}]]]})
    served.schedules.add("nightly", "0 3 * * *", "add", {"a": 1, "b": 1})
    served.queue("slow").pause(reason="maintenance")
    with served.batch() as batch:
        explode.using(batch=batch).enqueue("in a batch")
    served.observe.snapshot()  # imports what requests would import in several threads at once, which pytest rewrites
    return served


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    servers: list[WebServer] = []

    def start(app: Holdfast, mount: str = "", **options: Any) -> str:
        page = app.web(**options)
        servers.append(WebServer(Starlette(routes=[Mount(mount, page)]) if mount else page, port=0).start())
        return servers[-1].url.rstrip("/")

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page, and fail at its end if it logged an error or ran a script of a payload."""
    opened: list[tuple[Page, list[str]]] = []

    def open_one(url: str, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
        opened.append((page, errors))
        page.goto(url)
        return page

    expect.set_options(timeout=PATIENCE_MS)
    yield open_one
    for page, errors in opened:
        assert page.title() != "owned"
        page.context.close()
        assert [one for one in errors if "401" not in one and "400" not in one] == []


def screenshot(page: Page, name: str) -> None:
    folder = os.environ.get("HOLDFAST_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def require_that_it_fits(page: Page, width: int, height: int) -> None:
    """Wait until nothing makes the page wider than the window."""
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_shows_hostile_data_safely_and_is_accessible(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page], theme: str
) -> None:
    url = serve(full)
    page = open_page(url, color_scheme=theme)
    for path, title in [*PAGES.items(), ("/jobs/2", "Job 2"), ("/jobs/3", "Job 3")]:
        page.goto(url + path)
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        expect(page.locator(".loading")).to_have_count(0)
        require_that_it_fits(page, 360, 700)
        require_that_it_fits(page, 1280, 900)
        screenshot(page, f"{title.lower().replace(' ', '-')}-{theme}")
        found = Axe().run(page)
        serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == [], path


def act(page: Page, label: str, reason: str, **fields: str) -> None:
    page.get_by_role("button", name=label, exact=True).first.click()
    dialog = page.locator("dialog[open]")
    for name, value in fields.items():
        dialog.locator(f"[name={name}]").fill(value)
    dialog.locator("[name=reason]").fill(reason)
    dialog.get_by_role("button", name=label, exact=True).click()
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_every_action_on_a_job(full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]) -> None:
    add = full.tasks["add"]
    url = serve(full)
    page = open_page(f"{url}/jobs/2")
    act(page, "Retry", "smtp is back")
    expect(page.locator(".head .badge")).to_have_text("ready")
    act(page, "Cancel", "not today")
    expect(page.locator(".head .badge")).to_have_text("cancelled")
    act(page, "Copy", "", args='{"text": "copied"}')
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Job 2")
    assert full.jobs.list(limit=1)[0].args == {"text": "copied"}
    later = add.using(delay=60).enqueue(1, 1).id
    page.goto(f"{url}/jobs/{later}")
    act(page, "Run now", "urgent")
    expect(page.locator(".head .badge")).to_have_text("ready")
    act(page, "Complete", "by hand", result="12")
    expect(page.locator(".head .badge")).to_have_text("succeeded")
    assert full.jobs.get(later).result == 12
    doomed = add.enqueue(5, 5).id
    page.goto(f"{url}/jobs/{doomed}")
    act(page, "Fail", "", code="REJECTED:BUDGET")
    expect(page.locator(".head .badge")).to_have_text("failed")
    act(page, "Delete", "cleaning")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    reasons = {one.detail.get("reason") for one in full.observe.last_events(200)}
    assert {"smtp is back", "not today", "urgent", "by hand"} <= reasons


def test_queues_schedules_and_batches_are_operated(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    url = serve(full)
    page = open_page(f"{url}/schedules")
    act(page, "Pause", "deploy")
    expect(page.locator(".s-paused")).to_have_count(1)
    act(page, "Resume", "done")
    expect(page.locator(".s-paused")).to_have_count(0)
    page.goto(f"{url}/queues")
    act(page, "Resume", "over")
    expect(page.locator(".s-paused")).to_have_count(0)
    page.goto(f"{url}/batches")
    act(page, "Cancel", "too late")
    expect(page.locator(".s-done")).to_have_count(1)
    page.goto(f"{url}/schedules")
    act(page, "Run now", "by hand")
    assert full.schedules.get("nightly").last_job_id is not None or full.jobs.list(limit=1)[0].task == "add"


def test_search_by_qualifiers_and_keys(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    url = serve(full)
    page = open_page(url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("/")
    field = page.get_by_label("Search jobs")
    expect(field).to_be_focused()
    field.fill("status:scheduled tag:vip")
    field.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert "q=status" in page.url
    expect(page.locator(".chip")).to_have_count(2)
    page.goto(f"{url}/jobs?q=status:scheduled")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    expect(page.locator("tr.selected")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Job ")
    page.goto(f"{url}/jobs")
    expect(page.locator("tbody tr").first).to_be_visible()
    field.fill("colour:red")
    field.press("Enter")
    expect(page.locator(".note")).to_contain_text("colour: is no qualifier")
    field.fill("id:1")
    field.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job 1")


def test_the_page_follows_what_happens_and_reconnects(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    url = serve(full)
    page = open_page(f"{url}/jobs?q=queue:fresh")
    expect(page.locator(".empty")).to_be_visible()
    expect(page.locator(".live")).to_have_text("live")
    full.queue("fresh").send(1)
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{url}/events")
    expect(page.locator(".live")).to_have_text("live")
    full.queue("fresh").send(2)
    newest = full.observe.last_event()
    expect(page.locator("tbody tr").first).to_contain_text(str(newest))


def test_an_empty_database_says_what_to_do(
    app: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    url = serve(app)
    page = open_page(url)
    expect(page.locator(".empty").first).to_contain_text("Enqueue one")
    for path in ("/queues", "/workers", "/schedules", "/tasks", "/errors", "/batches", "/events", "/jobs"):
        page.goto(url + path)
        expect(page.locator(".empty").first).to_be_visible()
    page.goto(f"{url}/nowhere")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")


def test_login_roles_and_logout(
    full: Holdfast, users: Users, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full, auth=users, hosts=['127.0.0.1'])}/jobs/2")
    page.get_by_label("Name").fill("viewer")
    page.get_by_label("Password").fill("wrong password")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("wrong")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Job 2")
    expect(page.get_by_role("button", name="Retry", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.get_by_label("Name").fill("operator")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    act(page, "Retry", "as operator")
    expect(page.locator(".head .badge")).to_have_text("ready")
    assert ("requeued", "operator") in {(one.event, one.actor) for one in full.observe.last_events(9)}


def test_nothing_is_loaded_from_elsewhere_and_the_first_page_is_small(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    url = serve(full)
    page = open_page("about:blank")
    loaded: list[tuple[str, int]] = []

    def add(response: Any) -> None:
        size = int(response.headers.get("content-length", 0))
        loaded.append((response.url, size))

    page.on("response", add)
    page.goto(url)
    expect(page.locator(".u-legend").first).to_be_visible()
    assert all(one.startswith(url) for one, _ in loaded)
    assert sum(size for _, size in loaded) < 200 * 1024


def test_it_works_below_a_path_of_another_application(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full, mount='/admin/jobs')}/admin/jobs/queues")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Events")
    assert page.url.endswith("/admin/jobs/events")
