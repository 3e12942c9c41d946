"""The pytest plugin, tested in projects with a pytest run of their own."""

import subprocess
import sys
from textwrap import dedent

import pytest

pytest_plugins = ["pytester"]

TASKS = """
    from holdfast import Holdfast, Retry, Context

    app = Holdfast("real.db")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task(retry=60)
    def stubborn(ctx: Context) -> str | Retry:
        return "done" if ctx.attempt == 3 else Retry()

    @app.cron("0 * * * *")
    def tidy() -> None: ...
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=dedent(TASKS))
    return pytester


def test_without_a_setting_app_is_new_and_has_a_fake_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from holdfast.testing import drain, enqueued

        def test_one(holdfast_app, holdfast_clock, tmp_path):
            assert holdfast_app.clock is holdfast_clock and holdfast_app.tasks == {}
            job = holdfast_app.task(name="work")(lambda: 7).using(delay=3600).enqueue()
            start = holdfast_clock.now()
            assert drain(holdfast_app).succeeded == 1
            assert job.refresh().result == 7
            assert holdfast_clock.now() - start == 3600 * 1_000_000
            assert list(tmp_path.iterdir()) == []

        def test_two(holdfast_app):
            assert holdfast_app.tasks == {} and enqueued(holdfast_app) == []
        """
    )
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=2)


@pytest.mark.parametrize("setting", ["shop:app", "shop", "./shop.py", "shop.py:app"])
def test_with_a_setting_app_is_the_projects_on_a_temporary_database(project: pytest.Pytester, setting: str) -> None:
    project.makeini(f"[pytest]\nholdfast_app = {setting}\n")
    project.makepyfile(
        test_shop="""
        import shop
        from holdfast.testing import assert_enqueued, drain, inline, refute_enqueued

        real = shop.app.store

        def test_one(holdfast_app):
            assert holdfast_app is shop.app and holdfast_app.store is not real
            with inline():
                assert shop.double.enqueue(4).result == 8

        def test_two(holdfast_app):
            refute_enqueued(shop.double)
            job = shop.stubborn.enqueue()
            assert drain(holdfast_app).retried == 2
            assert job.refresh().result == "done"

        def test_three(holdfast_app, holdfast_clock):
            holdfast_clock.advance(3600)
            assert [one.task for one in drain(holdfast_app)] == ["tidy"]

        def test_without_the_fixture_it_is_as_it_was():
            assert shop.app.store is real
            refute_enqueued(shop.app)
        """
    )
    project.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_a_failed_assertion_is_shown_as_a_diff_without_our_own_frames(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        from holdfast.testing import assert_enqueued

        def test_one(holdfast_app):
            @holdfast_app.task
            def work(number: int) -> None: ...

            work.enqueue(3)
            assert_enqueued(work, 4)
        """
    )
    result = project.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no job of work with number=4 was enqueued*", "E*- number=4", "E*+ number=3"])
    result.stdout.no_fnmatch_line("*enqueued.py*")


def test_a_setting_that_cannot_be_loaded_is_an_error(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nholdfast_app = shop:ap\n")
    project.makepyfile(test_shop="def test_one(holdfast_app): ...")
    result = project.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*CannotLoadApp: shop has no 'ap'; its apps are app*"])


def test_a_project_may_have_another_app(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture
        def app():
            return "an app of Flask"
        """
    )
    project.makeini("[pytest]\nholdfast_app = shop:app\n")
    project.makepyfile(
        test_shop="""
        import shop

        def test_one(app, holdfast_app):
            assert app == "an app of Flask" and holdfast_app is shop.app
        """
    )
    project.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_there_is_no_fixture_with_a_name_that_projects_use_themselves(pytester: pytest.Pytester) -> None:
    """14.6: `app` is the fixture of every project with a web framework."""
    pytester.makepyfile("def test_one(app): ...")
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'app' not found*"])


def test_the_clock_may_be_the_projects_own(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import pytest
        from holdfast.testing import FakeClock

        @pytest.fixture
        def holdfast_clock():
            return FakeClock(now=0)

        def test_one(holdfast_app):
            assert holdfast_app.task(name="work")(lambda: None).enqueue().created_at.year == 1970
        """
    )
    project.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_an_unused_plugin_is_silent(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): ...")
    arguments = ["-p", "no:cacheprovider", "--strict-config", "--strict-markers", "-W", "error"]
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=1)


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    """pytest loads it everywhere, used or not."""
    code = "import sys, pytest; import holdfast.testing.plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "holdfast.testing.plugin" in loaded
    heavy = {"sqlite3", "asyncio", "multiprocessing", "cronsim", "holdfast.store.sqlite", "holdfast.supervisor.load"}
    assert heavy & set(loaded) == set()
