"""The web page in a real Chromium: every page and action, both themes, narrow and wide, checked for accessibility.

Screenshots of each page go to the folder that HOLDFAST_SCREENSHOTS names, to be looked at. `make pictures` makes
those of the guide.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Holdfast
from holdfast.testing import drain
from holdfast.web import Identity, Users, identity
from holdfast.web.server import WebServer
from support.demo_shop import Shop
from support.running_worker import RunningWorker, eventually
from support.web_users import PASSWORD

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
FITS = """() => new Promise((done) => {
    let left = 600;
    const look = () => {
        const page = document.documentElement;
        if (page.scrollWidth <= page.clientWidth || !(left -= 1)) done(page.scrollWidth <= page.clientWidth);
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})"""
HIGHEST_ROW = "Math.max(0, ...[...document.querySelectorAll('tbody tr')].map((row) => row.offsetHeight))"
PATIENCE_MS = 60_000  # how long a step may take on a busy machine; none waits for long when it succeeds
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
PAGES = {
    "/": "Overview",
    "/jobs": "Jobs",
    "/inbox": "Inbox",
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


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One database, worker and server for the tests that do not change what others look at."""
    shop = Shop(tmp_path_factory.mktemp("shop") / "shop.db")
    server = WebServer(shop.app.web(), port=0).start()
    shop.url = server.url.rstrip("/")
    yield shop
    server.close()
    shop.close()


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
        expected = ("401", "400", "net::ERR_")  # refused, or the server was stopped by the test
        assert [one for one in errors if not any(part in one for part in expected)] == []


def screenshot(page: Page, name: str, full_page: bool = True) -> None:
    folder = os.environ.get("HOLDFAST_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=full_page)


def require_accessible(page: Page, path: str) -> None:
    found = Axe().run(page)
    serious = [one for one in found.response["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == [], path


def require_that_it_fits(page: Page, width: int, height: int) -> None:
    """Wait until nothing makes the page wider than the window."""
    page.set_viewport_size({"width": width, "height": height})
    assert page.evaluate(FITS), f"{page.url} is wider than {width} pixels"


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
        assert page.evaluate(HIGHEST_ROW) < 150, f"{path}: words are broken into letters"
        screenshot(page, f"{title.lower().replace(' ', '-')}-{theme}")
        require_accessible(page, path)


def test_a_huge_payload_is_cut_and_leaves_the_page_usable(
    app: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    deep: Any = "the end"
    for _ in range(30):
        deep = [{"deeper": deep}]
    huge = [
        "y" * 1_000_000,
        list(range(150_000)),
        deep,
        {"k" * 100_000: "v", "\u202ertl\0": "\x1b[31m", "__proto__": 1},
    ]
    ids = app.queue("q").send_many(huge)
    page = open_page(serve(app))
    for id in ids:
        page.goto(f"{page.url.split('/jobs')[0].rstrip('/')}/jobs/{id}")
        expect(page.locator(".timeline li")).to_have_count(1)
        require_that_it_fits(page, 1280, 900)
        assert page.evaluate("document.querySelectorAll('*').length") < 2000
        assert page.evaluate("document.documentElement.scrollHeight") < 1200
        require_accessible(page, page.url)


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
    page.get_by_role("button", name="Copy", exact=True).click()
    dialog = page.locator("dialog[open]")
    dialog.locator("[name=args]").fill('{"text": 7}')
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("do not match its signature")
    for name, value in {"args": '{"text": "copied"}', "queue": "urgent", "delay": "60"}.items():
        dialog.locator(f"[name={name}]").fill(value)
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Job 2")
    (made,) = full.jobs.list(limit=1)
    assert (made.args, made.queue, made.status) == ({"text": "copied"}, "urgent", "scheduled")
    later = add.using(delay=60, tags=["vip", "a, b"], timeout=7, key="7,8").enqueue(1, 1).id
    page.goto(f"{url}/jobs/{later}")
    page.get_by_role("button", name="Copy", exact=True).click()
    dialog.locator("[name=reason]").fill("once more")
    dialog.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_role("heading", level=1)).not_to_have_text(f"Job {later}")
    (made,) = full.jobs.list(limit=1)
    assert (made.tags, made.timeout, made.key) == (("vip", "a, b"), 7, None)
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
    assert {"smtp is back", "not today", "urgent", "by hand", "once more"} <= reasons


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
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"^Job \d+$"))
    page.goto(f"{url}/jobs")
    expect(page.locator("tbody tr").first).to_be_visible()
    field.fill("colour:red")
    field.press("Enter")
    expect(page.locator(".note")).to_contain_text("colour: is no qualifier")
    field.fill("id:1")
    field.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job 1")


def test_names_are_found_whatever_is_in_them(
    app: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    """Between quotation marks, a comma does not separate values, and a backslash lets a quotation mark be one."""
    names = ['a, "b"', "c\\d", "e,f"]
    for name in names:
        app.queue(name).send(1, key="7,8")
    page = open_page(f"{serve(app)}/queues")
    field = page.get_by_label("Search jobs")
    for name in names:
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody tr")).to_contain_text(name)
        expect(page.locator(".chip")).to_have_count(1)
        page.go_back()
    page.keyboard.press("/")
    for search, found in {'key:"7,8"': 3, "key:7,8": 0, 'queue:"e,f" queue:c*': 2, "status:ready,failed": 3}.items():
        field.fill(search)
        field.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(found)
        expect(page.locator(".empty")).to_have_count(0 if found else 1)


def test_a_search_that_is_wrong_is_told_and_does_not_load_for_ever(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full)}/jobs?q=status:lost")
    expect(page.get_by_role("alert")).to_contain_text("status must be one of")
    expect(page.locator(".loading")).to_have_count(0)
    field = page.get_by_label("Search jobs")
    for search, told in {"id:x": "id: must be the number of a job", "hello": "hello is no qualifier"}.items():
        field.fill(search)
        field.press("Enter")
        expect(page.locator(".note")).to_contain_text(told)


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
    for path in ("/queues", "/workers", "/schedules", "/tasks", "/errors", "/batches", "/events", "/jobs", "/inbox"):
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


def test_a_login_is_asked_for_again_when_the_server_was_started_anew(
    full: Holdfast, users: Users, open_page: Callable[..., Page]
) -> None:
    """Sessions are in its memory. A page that only follows events is told by no other request."""
    server = WebServer(full.web(auth=users, hosts=["127.0.0.1"]), port=0).start()
    page = open_page(f"{server.url}storage")

    def log_in() -> None:
        page.get_by_label("Name").fill("viewer")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Storage")
        expect(page.locator(".live")).to_have_text("live")

    log_in()
    server.close()
    expect(page.locator(".live")).to_have_text("reconnecting…")
    again = WebServer(full.web(auth=users, hosts=["127.0.0.1"]), port=server.port).start()
    log_in()
    again.close()


def test_who_is_not_logged_in_to_the_application_around_the_page_is_told_so(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    found: list[Identity] = []
    page = open_page(serve(full, auth=lambda _: found[0] if found else None))
    expect(page.get_by_role("alert")).to_have_text("log in to the application that this page is part of")
    expect(page.get_by_label("Password")).to_have_count(0)
    found.append(identity("ada"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


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


# --- the shop: every page with an hour of history ---


GUIDE = {"/": "overview", "/queues": "queues", "/errors": "errors", "/inbox": "inbox", "/schedules": "schedules"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_for_the_guide(shop: Shop, open_page: Callable[..., Page], theme: str) -> None:
    """Each page as people see it: accessible, and without a horizontal scroll bar from a telephone to 4K."""
    page = open_page(shop.url, color_scheme=theme)
    job = f"/jobs/{shop.blocked.id}"
    for path, name in {**GUIDE, "/workers": "workers", "/tasks": "tasks", "/storage": "storage", job: "job"}.items():
        page.goto(shop.url + path)
        expect(page.locator(".loading")).to_have_count(0)
        if path == "/":
            expect(page.locator(".u-legend")).to_have_count(3)
        if path == job:
            expect(page.locator(".graph svg")).to_have_count(1)
        screenshot(page, f"{name}-{theme}", full_page=False)
        for width, height in ((360, 700), (3840, 2000), (1280, 900)):
            require_that_it_fits(page, width, height)
            if width == 360:
                screenshot(page, f"{name}-{theme}-360")
        require_accessible(page, path)


def test_the_graph_links_to_the_neighbours_of_a_job(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/jobs/{shop.blocked.id}")
    expect(page.locator(".note").get_by_role("link", name=f"job {shop.approval.id}")).not_to_have_count(0)
    graph = page.locator(".graph svg")
    expect(graph.locator(".node")).to_have_count(5)
    expect(graph.locator(".edge")).to_have_count(4)
    expect(graph.locator(".node.here")).to_contain_text(str(shop.blocked.id))
    graph.get_by_role("link", name=f"job {shop.approval.id}, approve_refund, blocked").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {shop.approval.id}")
    expect(page.locator(".tree")).to_contain_text("Ada Lovelace")


# Whether no edge passes through a job that it does not join.
IS_CLEAR = """() => [...document.querySelectorAll(".graph .edge")].every((edge) => {
    const boxes = [...document.querySelectorAll(".graph .node rect")].map((one) => one.getBoundingClientRect());
    const { left, top } = edge.ownerSVGElement.getBoundingClientRect();
    return [...Array(101).keys()].every((step) => {
        const { x, y } = edge.getPointAtLength((edge.getTotalLength() * step) / 100);
        const [across, down] = [x + left, y + top];
        const inside = (box) => Math.abs(across - (box.left + box.right) / 2) < box.width / 2 - 4;
        return !boxes.some((box) => inside(box) && down > box.top && down < box.bottom);
    });
})"""


def test_the_graph_shows_a_dependency_that_skips_a_step(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    add, approval = full.tasks["add"], full.external("approve")
    first = add.using(after=approval).enqueue(1, 1)
    second = add.using(after=[approval, first]).enqueue(1, 1)
    third = add.using(after=[approval, second]).enqueue(1, 1)
    page = open_page(f"{serve(full)}/jobs/{third.id}")
    expect(page.locator(".graph .edge")).to_have_count(5)
    assert page.evaluate(IS_CLEAR)


def test_the_timeline_has_attempts_with_durations_and_the_error_how_often_it_occurred(
    shop: Shop, open_page: Callable[..., Page]
) -> None:
    failed = shop.app.jobs.list(status="failed", task="send_mail", limit=1)[0]
    page = open_page(f"{shop.url}/jobs/{failed.id}")
    expect(page.locator(".timeline li.attempt")).to_have_count(2)
    expect(page.locator(".timeline .took").filter(has_text="ran ")).to_have_count(2)
    expect(page.locator("section").filter(has=page.get_by_role("heading", name="Last error"))).to_contain_text(
        "times"
    )
    expect(page.locator("pre")).to_contain_text("ConnectionError: smtp.example.org refused the connection")
    done = shop.app.jobs.list(status="succeeded", task="send_mail", limit=1)[0]
    page.goto(f"{shop.url}/jobs/{done.id}")
    expect(page.locator(".timeline li")).to_have_text([re.compile("enqueued"), re.compile("Attempt 1: succeeded")])


def test_text_is_copied_also_where_browsers_have_no_clipboard_api(shop: Shop, open_page: Callable[..., Page]) -> None:
    """They have none on a page without TLS that another machine serves."""
    page = open_page(f"{shop.url}/jobs/{shop.approval.id}")
    page.evaluate("() => { delete Navigator.prototype.clipboard; }")
    page.get_by_role("button", name="copy", exact=True).first.click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    page.get_by_role("link", name="Events").click()
    field = page.get_by_label("Filter events")
    field.press("Control+V")
    expect(field).to_have_value(re.compile("Ada Lovelace"))


def test_each_relative_time_tells_the_exact_one(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(shop.url)
    expect(page.locator(".stats")).to_contain_text("worker, ")
    for path in PAGES:
        page.goto(shop.url + path)
        expect(page.locator(".loading")).to_have_count(0)
        expect(page.locator("time:not([title])")).to_have_count(0)
        for cell in page.locator("tbody td, .stat .value").filter(has_text=re.compile(r"^\d+(\.\d)? [smhd]\b")).all():
            if page.locator("h1").inner_text() not in ("Tasks", "Batches"):  # those are durations
                expect(cell.locator("time")).to_have_count(1)


def test_charts_show_values_and_periods_change(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(shop.url)
    chart = page.locator(".chart .u-over").first
    expect(chart).to_be_visible()
    page.get_by_role("button", name="15 min").click()
    expect(page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
    value = page.locator(".u-legend .u-value").first

    def has_value() -> bool:
        chart.hover(position={"x": 60, "y": 20}, force=True)  # a new drawing of the chart forgets where the mouse was
        return value.inner_text() not in ("--", "–", "")

    eventually(has_value, "the legend has the value below the mouse")


def test_a_chosen_period_is_in_the_address(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/errors?period=all")
    expect(page.get_by_role("button", name="All", exact=True)).to_have_attribute("aria-pressed", "true")
    for path in ("/", "/tasks", "/errors"):
        page.goto(shop.url + path)
        page.get_by_role("button", name="7 d").click()
        page.wait_for_url("**?period=7d")
        page.reload()
        expect(page.get_by_role("button", name="7 d")).to_have_attribute("aria-pressed", "true")


def test_a_zoomed_chart_stays_so_when_something_happens(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(serve(full))
    chart, over = page.locator(".chart").first, page.locator(".chart .u-over").first
    expect(chart).to_have_attribute("title", "Drag to zoom in")
    box = over.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 30
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + box["width"] / 4, y, steps=5)
    page.mouse.up()
    expect(chart).to_have_attribute("title", "Double-click to zoom out")
    with page.expect_response("**/timeline*") as told:
        full.queue("fresh").send(1)
    told.value.finished()
    page.evaluate("() => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 300))")
    expect(chart).to_have_attribute("title", "Double-click to zoom out")
    over.dblclick()
    expect(chart).to_have_attribute("title", "Drag to zoom in")


def test_old_events_are_found_however_much_happened_since(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    full.queue("busy").send_many(range(800))
    page = open_page(f"{serve(full)}/events?q=maintenance")
    expect(page.locator(".empty")).to_contain_text("None of the newest 200 events matches")
    page.get_by_role("button", name="Search older events").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("reason maintenance")
    page.get_by_label("Filter events").fill("")
    expect(page.get_by_role("button", name="Older")).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(full.observe.last_event())


def test_a_job_that_is_quicker_than_a_millisecond_has_a_duration(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(shop.url)
    times = ["2026-01-01T00:00:00.001002Z", "2026-01-01T00:00:00.001009Z"]
    took = "(times) => import('/static/ui.js').then((ui) => ui.seconds(...times))"
    assert page.evaluate(took, times) == 0.000007


def test_columns_are_chosen_and_stay_so(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full)}/jobs")
    head = page.locator("thead")
    expect(head).to_contain_text("Attempt")
    expect(head).not_to_contain_text("Tags")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Tags", exact=True).check()
    page.get_by_label("Attempt", exact=True).uncheck()
    expect(head).to_contain_text("Tags")
    page.reload()
    expect(head).to_contain_text("Tags")
    expect(head).not_to_contain_text("Attempt")
    expect(page.locator("tbody tr").filter(has_text="vip")).to_have_count(1)


@pytest.mark.parametrize(
    ("locale", "written"),
    [("de-CH", r"^\d{1,2}\. \w+\.?,? \d\d:\d\d$"), ("en-US", r"^\w{3} \d{1,2},? \d\d:\d\d [AP]M$")],
)
def test_charts_write_times_in_the_language_and_zone_of_the_viewer(
    shop: Shop, open_page: Callable[..., Page], locale: str, written: str
) -> None:
    page = open_page(shop.url, locale=locale, timezone_id="Asia/Kathmandu")
    label = page.evaluate("import('/static/ui.js').then((ui) => ui.timeLabels([1700000100, 1700003700]))")
    label = [one.replace("\u202f", " ") for one in label]
    assert label == {"de-CH": ["04:00", "05:00"], "en-US": ["04:00 AM", "05:00 AM"]}[locale]
    chart = page.locator(".chart .u-over").first
    expect(chart).to_be_visible()
    value = page.locator(".u-legend .u-value").first

    def has_value() -> bool:
        chart.hover(position={"x": 60, "y": 20}, force=True)
        return re.match(written, value.inner_text().replace("\u202f", " ")) is not None

    eventually(has_value, "the legend has the time below the mouse")


def test_queues_show_who_paused_them_and_why(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/queues")
    row = page.locator("tr").filter(has_text="newsletter")
    expect(row).to_contain_text("the provider is down until noon")
    expect(row).to_contain_text("by ada")
    expect(page.locator("tr").filter(has_text="mail").first).to_contain_text("limit 4")
    expect(row.locator("svg.spark")).to_have_count(2)


def test_tasks_errors_and_batches_tell_rates_trends_and_progress(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/tasks")
    row = page.locator("tbody tr").filter(has_text="make_thumbnail")
    expect(row.locator(".columns")).to_have_attribute("aria-label", re.compile("attempt 1: .*attempt 2: "))
    page.goto(f"{shop.url}/errors")
    group = page.locator("section.panel").filter(has_text="ConnectionError: smtp.example.org")
    expect(group).to_contain_text("First")
    expect(group.locator("svg.spark")).to_have_count(1)
    group.get_by_text("Traceback", exact=True).click()
    expect(group.locator("pre")).to_contain_text("send_mail")
    page.goto(f"{shop.url}/batches?state=running")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr .bar")).to_have_attribute("aria-label", re.compile("of 40 finished"))


def test_workers_show_what_they_run_and_schedules_when_they_run(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/workers")
    panel = page.locator("section.panel").filter(has_text=shop.worker.id)
    expect(panel).to_contain_text("monthly_report")
    expect(panel).to_contain_text("MiB")
    page.goto(f"{shop.url}/schedules")
    panel = page.locator("section.panel").filter(has_text="nightly-report")
    expect(panel).to_contain_text("at 03:30, on Monday to Friday")
    expect(panel.locator("dd").nth(2).locator("div")).to_have_count(5)


def test_schedules_tell_the_next_times_in_the_zone_of_the_viewer(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/schedules", locale="de-CH", timezone_id="Asia/Tokyo")
    expect(page.locator(".head")).to_contain_text("Times are in Asia/Tokyo")
    here = ZoneInfo("Asia/Tokyo")
    shown = page.locator("section.panel").filter(has_text="nightly-report").locator("dd").nth(2).locator("div")
    expect(shown).to_have_count(5)
    for index, at in enumerate(shop.app.schedules.get("nightly-report").upcoming(5)):
        expect(shown.nth(index)).to_contain_text(at.astimezone(here).strftime("%H:%M"))


def test_the_inbox_tells_until_when_to_decide(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/inbox")
    items = page.locator(".inbox-item")
    expect(items.filter(has_text="approve_refund")).to_contain_text(re.compile(r"Deadline in \d+ [hm]"))
    expect(items.filter(has_text="check_address")).not_to_contain_text("Deadline")


def test_keys_move_between_pages_and_rows(shop: Shop, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{shop.url}/queues")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator("tbody tr").first.locator("a").first).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator("tbody tr").nth(1).locator("a").first).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", level=1)).to_have_text("Inbox")
    page.keyboard.press("?")
    expect(page.locator("dialog#help")).to_be_visible()


def test_the_inbox_is_decided_with_a_comment(full: Holdfast, serve: Callable[..., str], open_page: Any) -> None:
    first, second = full.external("approve", {"text": HOSTILE}), full.external("approve", {"n": 2})
    page = open_page(f"{serve(full)}/inbox")
    expect(page.locator(".inbox-item")).to_have_count(2)
    act(page, "Complete", "fine with me", result='{"approved": true}')
    expect(page.locator(".inbox-item")).to_have_count(1)
    act(page, "Reject", "too expensive", code="REJECTED:BUDGET", detail="over the limit")
    expect(page.locator(".empty")).to_contain_text("Nothing waits for a decision")
    assert full.jobs.get(second.id).result == {"approved": True}
    rejected = full.jobs.get(first.id)
    assert (rejected.error_code, rejected.error_detail) == ("REJECTED:BUDGET", "over the limit")


def test_a_worker_is_asked_to_stop_and_the_file_is_vacuumed(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    url = serve(full)
    with RunningWorker(full) as running:
        page = open_page(f"{url}/workers")
        act(page, "Stop", "new kernel")
        running.report()
    page.goto(f"{url}/storage")
    act(page, "Vacuum", "space")
    expect(page.locator(".toast")).to_be_visible()
    reasons = {one.event: one.detail.get("reason") for one in full.observe.last_events(50)}
    assert (reasons["stop_requested"], reasons["vacuumed"]) == ("new kernel", "space")


def test_suggestions_complete_a_search(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full)}/jobs")
    field = page.get_by_label("Search jobs")
    field.fill("sta")
    expect(page.get_by_role("option")).to_have_text(["status: failed"])
    page.get_by_role("option").click()
    expect(field).to_have_value("status:")
    field.press_sequentially("sch")
    field.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_contain_text("status:scheduled")
    field.press("Enter")
    expect(field).to_have_value("status:scheduled ")
    field.press_sequentially("queue:ma")
    expect(page.get_by_role("option")).to_have_text(["queue:mail ", "queue:math "])
    field.press("Escape")
    expect(page.get_by_role("option")).to_have_count(0)
    field.fill("tag:")
    expect(page.get_by_role("option")).to_have_text(["tag:vip "])
    field.fill("key:")
    expect(page.get_by_role("option")).to_have_text(["key:k "])
    field.fill("task:ad* args.a:3 tag:vip")
    field.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator(".chip")).to_have_count(3)


def test_going_back_from_a_job_leads_to_the_search_before_it(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    """Each step is one entry of the history, also after a chip was removed and where a search is repeated."""
    page = open_page(f"{serve(full)}/jobs")
    field = page.get_by_label("Search jobs")
    field.fill("status:scheduled tag:vip")
    field.press("Enter")
    expect(page.locator(".chip")).to_have_count(2)
    field.press("Enter")  # the same search again is no step
    page.get_by_role("button", name="Remove status:scheduled").click()
    expect(page.locator(".chip")).to_have_count(1)
    expect(page.locator(".chip")).to_contain_text("tag:vip")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    expect(page.locator("tr.selected")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"^Job \d+$"))
    for chips in (1, 2, 0):
        page.evaluate("history.back()")
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        expect(page.locator(".chip")).to_have_count(chips)
        expect(field).to_have_value({1: "tag:vip", 2: "status:scheduled tag:vip", 0: ""}[chips])
    page.evaluate("history.forward()")
    expect(page.locator(".chip")).to_have_count(2)


# Does each step as soon as the page has changed for the one before, before the browser draws it.
QUICK_KEYS = """() => new Promise((done) => {
    const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const steps = [
        [() => document.querySelectorAll(".chip").length === 1, () => press("j")],
        [() => document.querySelector("tr.selected"), () => { press("Enter"); done(location.pathname); }],
    ];
    new MutationObserver(() => { if (steps.length && steps[0][0]()) steps.shift()[1](); })
        .observe(document.body, { subtree: true, childList: true, attributes: true });
    document.querySelector(".chip button").click();
    setTimeout(() => done("a key was lost"), 60_000);
})"""


def test_no_key_is_lost_however_quickly_it_follows(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full)}/jobs?q=status:scheduled tag:vip")
    expect(page.locator("tbody tr")).to_have_count(1)
    (job,) = full.jobs.list(status="scheduled")
    assert page.evaluate(QUICK_KEYS) == f"/jobs/{job.id}"


def test_many_jobs_are_chosen_counted_changed_and_stopped(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = full.tasks["add"]
    ids = [add.using(queue="bulk", delay=3600).enqueue(n, n).id for n in range(5)]
    url = serve(full)
    page = open_page(f"{url}/jobs?q=queue:bu*")
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_label(f"Choose job {ids[0]}").check()
    page.get_by_label(f"Choose job {ids[1]}").check()
    page.get_by_role("button", name="Run now …").click()
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("status")).to_have_text("2 jobs would be made ready.")
    dialog.locator("[name=reason]").fill("urgent")
    dialog.get_by_role("button", name="Run now 2 jobs").click()
    expect(page.locator(".operations .s-finished")).to_have_count(1)
    expect(page.locator(".operations")).to_contain_text("run now: 2 of 2")
    assert [full.jobs.get(id).status for id in ids] == ["ready"] * 2 + ["scheduled"] * 3
    page.get_by_role("button", name="Cancel …").click()  # nothing is chosen: all that match
    expect(dialog.get_by_role("status")).to_have_text("5 jobs would be cancelled.")
    dialog.get_by_role("button", name="Cancel 5 jobs").click()
    expect(page.locator(".operations")).to_contain_text("cancel: 5 of 5")
    monkeypatch.setattr(type(full.operations), "do_some", lambda _: 0.01)  # it stands still
    page.get_by_label("Choose all on this page").check()
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete 5 jobs").click()
    expect(page.locator(".operations .s-running")).to_have_count(1)
    screenshot(page, "jobs-bulk")
    act(page, "Stop", "wrong ones")
    expect(page.locator(".operations .s-stopped")).to_have_count(1)
    assert full.jobs.count(queue="bulk") == 5
    reasons = {(one.event, one.detail.get("reason")) for one in full.observe.last_events(50)}
    assert {("run_now", "urgent"), ("operation_stopped", "wrong ones")} <= reasons


def test_a_dropped_connection_is_told_and_nothing_is_missed(
    full: Holdfast, open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = WebServer(full.web(), port=0).start()
    page = open_page(f"{server.url}events")
    expect(page.locator(".live")).to_have_text("live")
    server.close()
    expect(page.locator(".live")).to_have_text("reconnecting…")
    full.queue("meanwhile").send_many(range(3))
    again = WebServer(full.web(), port=server.port).start()
    expect(page.locator(".live")).to_have_text("live")
    newest = full.observe.last_event()
    for id in range(newest - 2, newest + 1):
        expect(page.locator("tbody td").get_by_text(str(id), exact=True).first).to_be_visible()
    with monkeypatch.context() as broken:

        def fail(*_: Any, **__: Any) -> Any:
            raise OSError("the disk is gone")

        broken.setattr(type(full.observe), "last_event", fail)
        expect(page.locator(".live")).to_have_text("reconnecting…")
        expect(page.locator(".live")).to_have_attribute("title", "the disk is gone")
    expect(page.locator(".live")).to_have_text("live")
    again.close()


def test_a_hidden_tab_has_no_stream(
    full: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    page = open_page(f"{serve(full)}/events")
    expect(page.locator(".live")).to_have_text("live")
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
    page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", True)
    full.queue("unseen").send(1)
    assert page.evaluate("import('/static/lib.js').then((lib) => lib.live.source === null)")
    page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", False)
    expect(page.locator("tbody tr").first).to_contain_text(str(full.observe.last_event()))


def test_all_jobs_that_failed_at_one_place_in_the_code_are_retried_after_a_dry_run(
    served: Holdfast, serve: Callable[..., str], open_page: Callable[..., Page]
) -> None:
    @served.task(max_attempts=1)
    def divide(by: int) -> float:
        if by < 0:
            raise ZeroDivisionError("negative")  # the same code, elsewhere
        return 1 / by

    elsewhere, here = divide.enqueue(-1), divide.enqueue(0)
    drain(served, raise_errors=False)
    page = open_page(f"{serve(served)}/errors")
    page.locator("section", has_text="division by zero").get_by_role("button", name="Retry all of these").click()
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("status")).to_have_text("1 failed job matches.")
    dialog.locator("[name=reason]").fill("fixed")
    dialog.get_by_role("button", name="Retry all of these").click()
    expect(page.locator(".toast")).to_contain_text("in the background")
    eventually(lambda: here.refresh().status == "ready")
    assert elsewhere.refresh().status == "failed"
    (operation,) = served.operations.list()
    assert (operation.action, operation.reason) == ("retry", "fixed")
