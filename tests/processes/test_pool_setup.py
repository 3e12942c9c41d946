"""14.7: a pool process prepares what the worker's process has prepared before it imports a task."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from holdfast import Holdfast
from support.running_worker import PATIENCE_SECONDS

TASKS = """
    import prepared
    prepared.require()

    from holdfast import Holdfast

    jobs = Holdfast("app.db")

    @jobs.task(pool="process", max_attempts=1)
    def work() -> str:
        return "done"
"""
PREPARED = """
    ready = False

    def require():
        if not ready:
            raise RuntimeError("not ready: as Django's AppRegistryNotReady")
"""
START = """
    import prepared
    prepared.ready = True
    from tasks import jobs
"""
DJANGO_TASKS = """
    from django.contrib.contenttypes.models import ContentType  # AppRegistryNotReady before django.setup()
    from holdfast import Holdfast

    jobs = Holdfast("app.db")

    @jobs.task(pool="process", max_attempts=1)
    def work() -> str:
        return ContentType.__name__
"""
SETTINGS = """
    INSTALLED_APPS = ["django.contrib.contenttypes"]
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}}
"""


def write(folder: Path, **modules: str) -> None:
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(dedent(code))


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def result_of_the_only_job(folder: Path) -> tuple[str, object]:
    with Holdfast(folder / "app.db") as app:
        (job,) = app.jobs.list()
        return job.status, job.error_detail or job.result


WORKER = ["-m", "holdfast", "worker", "--until-idle", "--pool=1"]


def test_a_pool_process_imports_what_the_worker_was_given(tmp_path: Path) -> None:
    write(tmp_path, tasks=TASKS, prepared=PREPARED, start=START)
    run(tmp_path, "-c", "import start; from tasks import work; work.enqueue()")
    run(tmp_path, *WORKER, "start:jobs")
    assert result_of_the_only_job(tmp_path) == ("succeeded", "done")


def test_the_worker_and_its_pool_processes_set_django_up(tmp_path: Path) -> None:
    write(tmp_path, tasks=DJANGO_TASKS, settings=SETTINGS)
    enqueue = "import django; django.setup(); from tasks import work; work.enqueue()"
    run(tmp_path, "-c", enqueue, DJANGO_SETTINGS_MODULE="settings")
    run(tmp_path, *WORKER, "tasks:jobs", DJANGO_SETTINGS_MODULE="settings")
    assert result_of_the_only_job(tmp_path) == ("succeeded", "ContentType")


def test_a_worker_that_a_program_starts_sets_django_up_in_its_pool_processes(tmp_path: Path) -> None:
    """As a management command does: manage.py sets the variable and sets Django up."""
    program = """
        import os

        if __name__ == "__main__":
            os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
            import django
            django.setup()
            from tasks import jobs, work
            work.enqueue()
            jobs.worker(until_idle=True, pool=1).run()
    """
    write(tmp_path, tasks=DJANGO_TASKS, settings=SETTINGS, manage=program)
    run(tmp_path, "manage.py")
    assert result_of_the_only_job(tmp_path) == ("succeeded", "ContentType")


@pytest.mark.parametrize("settings", ["missing_settings", "broken_settings"])
def test_settings_that_cannot_be_loaded_are_an_error(tmp_path: Path, settings: str) -> None:
    write(tmp_path, tasks=DJANGO_TASKS, broken_settings="1 / 0")
    done = subprocess.run(
        [sys.executable, *WORKER, "tasks:jobs"],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode != 0
    assert ("missing_settings" if settings == "missing_settings" else "ZeroDivisionError") in done.stderr
