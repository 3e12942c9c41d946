"""What all tests share: a database, apps on it, a clock that stands still, and short ways to use them.

The tests here run on SQLite. The conformance suite runs on every store: see `conformance/conftest.py`.
"""

import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.model.job import Claimed
from holdfast.store.sqlite import migrate
from holdfast.testing import FakeClock
from support.backend import NEVER_SECONDS, Backend, SqliteBackend
from support.transitions import claim_tasks

# The same examples each time, and as long as it takes to find them.
settings.register_profile("any_speed", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("any_speed")


# A shell without job control starts background commands with SIGINT ignored, and their children inherit that. Tests
# send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With pytest-xdist: start one PostgreSQL server for all test processes."""
    from support.postgres_backend import server_url

    os.environ["HOLDFAST_TEST_POSTGRES"] = server_url()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


Template = Callable[[type[Backend]], str]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Gives a database with all tables and no rows, made once: to copy it is faster than to make another."""
    return functools.cache(lambda kind: kind.make_template(tmp_path_factory.mktemp(kind.name)))


@pytest.fixture
def migrated(template: Template) -> Path:
    """An SQLite file with all tables and no rows."""
    return Path(template(SqliteBackend))


@pytest.fixture
def newer_version(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Holdfast have one migration more than the databases that this test has made so far."""
    folder = tmp_path_factory.mktemp("newer") / "migrations"
    shutil.copytree(migrate.FOLDER, folder)
    (folder / "9000_later.sql").write_text("CREATE TABLE {p}later (x);\n")
    monkeypatch.setattr(migrate, "FOLDER", folder)


@pytest.fixture(autouse=True)
def any_speed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let nothing depend on how fast the machine is.

    A worker gives back jobs that it took and could not begin for 200 ms, as attempts that do not count: on a slow
    machine this could happen to any job, and tests count attempts. A test about it asks for `give_back_what_waits`.
    The doctor interrupts a query that takes longer than 250 ms.
    """
    with pytest.MonkeyPatch.context() as patch:  # one of its own, since a test may undo what it has patched itself
        if "give_back_what_waits" not in request.fixturenames:
            patch.setattr("holdfast.worker.housekeeping.MAX_UNSTARTED_NS", 3600 * 10**9)
        patch.setattr("holdfast.store.sqlite.diagnose.SECONDS_PER_QUERY", NEVER_SECONDS)
        yield


@pytest.fixture
def give_back_what_waits() -> None:
    """Workers give back what they took and could not begin, as they do outside of tests."""


@pytest.fixture
def no_polling(backend: Backend) -> Iterator[None]:
    """Only a wake-up ends a wait. If one is lost, the test hangs until its patience ends: no time is measured."""
    with pytest.MonkeyPatch.context() as patch:
        backend.stop_polling(patch)
        patch.setattr("holdfast.worker.thread_pool.MAX_WAIT_SECONDS", NEVER_SECONDS)
        patch.setattr("holdfast.worker.housekeeping.IDLE_SECONDS", NEVER_SECONDS)
        yield


@pytest.fixture
def backend(tmp_path: Path, template: Template) -> Iterator[Backend]:
    """The database of this test."""
    one = SqliteBackend(tmp_path, template(SqliteBackend))
    yield one
    one.close()


@pytest.fixture
def url(backend: Backend) -> str:
    """A place for a new, empty database."""
    return backend.url


@pytest.fixture
def open_app(backend: Backend) -> Callable[..., Holdfast]:
    """Opens the same database as often as it is called; all are closed at the end."""
    return backend.open


@pytest.fixture
def app(open_app: Callable[..., Holdfast], clock: FakeClock) -> Holdfast:
    """An app on a clock that stands still."""
    return open_app(clock=clock)


@pytest.fixture
def live(open_app: Callable[..., Holdfast]) -> Holdfast:
    """An app on the real clock."""
    return open_app()


@pytest.fixture
def sql(app: Holdfast, backend: Backend) -> Callable[..., list[Any]]:
    """Runs one statement as a program that knows nothing of Holdfast would, and commits it."""
    return backend.sql


@pytest.fixture
def claim(app: Holdfast) -> Callable[..., Claimed]:
    """Takes the next job of a task, as a worker does."""

    def take(*tasks: str, lease: float = 30, worker: str = "worker-1") -> Claimed:
        names = tasks or tuple(app.tasks)
        (claimed,) = claim_tasks(app.store, None, names, 1, round(lease * SECOND), worker)
        return claimed

    return take


@pytest.fixture
def events(app: Holdfast) -> Callable[[int], list[str]]:
    """The names of a job's events, in order."""

    def names(job_id: int) -> list[str]:
        return [entry.name for entry in app.store.jobs.history(job_id) if entry.kind == "event"]

    return names
