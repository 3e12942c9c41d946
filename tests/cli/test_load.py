"""Loading an app from `module:app`, and the errors when that fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CannotLoadApp, CannotOpen
from holdfast.supervisor.load import load_app

Module = Callable[[str, str], Path]

ONE = "from holdfast import Holdfast\napp = Holdfast('app.db')\n"
TWO = ONE + "other = Holdfast('other.db')\nnumber = 7\n"


def refused(reference: str) -> CannotLoadApp:
    with pytest.raises(CannotLoadApp) as caught:
        load_app(reference)
    assert "\n" not in str(caught.value)
    return caught.value


def name_of(app: Holdfast) -> str:
    app.close()
    return Path(app.store.database.options.path).name  # type: ignore[attr-defined]


@pytest.mark.parametrize("reference", ["tasks:app", "tasks", "tasks.py", "tasks.py:app", "./tasks.py"])
def test_an_app_is_found_in_the_current_folder(module: Module, reference: str) -> None:
    module("tasks.py", ONE)
    assert name_of(load_app(reference)) == "app.db"


@pytest.mark.parametrize("reference", ["shop.jobs:app", "shop.jobs", "shop/jobs.py", "./shop/jobs.py:app"])
def test_an_app_is_found_in_a_package(module: Module, reference: str) -> None:
    module("shop/__init__.py", "")
    module("shop/settings.py", "NAME = 'shop.db'")
    module("shop/jobs.py", "from holdfast import Holdfast\nfrom .settings import NAME\napp = Holdfast(NAME)\n")
    assert name_of(load_app(reference)) == "shop.db"


def test_an_app_is_loaded_from_an_absolute_path(module: Module, tmp_path: Path) -> None:
    file = module("far/away/tasks.py", "from helper import NAME\nfrom holdfast import Holdfast\napp = Holdfast(NAME)")
    module("far/away/helper.py", "NAME = 'far.db'")
    assert name_of(load_app(str(file))) == "far.db"


def test_one_of_several_apps_is_chosen_by_name(module: Module) -> None:
    module("tasks.py", TWO + "class Box:\n    app = other\n")
    for reference, name in (("tasks:app", "app.db"), ("tasks:other", "other.db"), ("tasks:Box.app", "other.db")):
        assert load_app(reference).store.database.options.path.name == name  # type: ignore[attr-defined]
    for app in ("tasks:app", "tasks:other"):
        load_app(app).close()


def test_the_same_app_under_two_names_is_one(module: Module) -> None:
    module("tasks.py", ONE + "celery = app\n")
    assert name_of(load_app("tasks")) == "app.db"


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("", "the app must be given as module:app"),
        (":app", "must be given as module:app"),
        ("tasks:", "got 'tasks:'"),
        ("tasks", "has several apps: choose one, tasks:app or tasks:other"),
        ("tasks:nothing", "tasks has no 'nothing'; its apps are app, other"),
        ("tasks:number", "tasks:number must be a Holdfast, got int; its apps are app, other"),
        ("tasks:Holdfast", "must be a Holdfast, got type"),
        ("empty", "empty has no Holdfast: create one there"),
        ("empty:app", "empty has no 'app', and no Holdfast"),
        ("nowhere:app", "there is no module 'nowhere' in "),
        ("nowhere.jobs:app", "there is no module 'nowhere'"),
        ("tasks.jobs:app", "there is no module 'tasks.jobs'"),
        ("./nowhere.py", "there is no file './nowhere.py'"),
        ("./data.txt", "end in .py"),
        ("my-tasks.py", "letters, digits and underscores"),
        ("my-tasks:app", "'my-tasks' is not the name of a module"),
        ("..tasks:app", "is not the name of a module"),
    ],
)
def test_a_wrong_reference_is_explained(module: Module, reference: str, complaint: str) -> None:
    module("tasks.py", TWO)
    module("empty.py", "")
    module("data.txt", "")
    module("my-tasks.py", ONE)
    error = refused(reference)
    assert complaint in str(error) and error.traceback is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import not_installed_at_all\n", "it raised ModuleNotFoundError: No module named 'not_installed_at_all'"),
        ("from holdfast import Holdfest\n", "it raised ImportError: cannot import name 'Holdfest'"),
        ("def f(:\n", "it raised SyntaxError"),
        ("1 / 0\n", "it raised ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", "it raised SystemExit: 3"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E\n", "it raised E"),
    ],
)
def test_a_module_that_raises_is_shown_with_its_traceback(module: Module, text: str, complaint: str) -> None:
    module("tasks.py", text)
    error = refused("tasks:app")
    assert str(error).startswith("tasks could not be imported") and complaint in str(error)
    assert error.traceback is not None
    assert "tasks.py" in error.traceback and "importlib" not in error.traceback and "load.py" not in error.traceback


def test_the_error_of_a_database_that_cannot_be_opened_is_not_wrapped(module: Module) -> None:
    module("tasks.py", "from holdfast import Holdfast\napp = Holdfast('no/such/folder/app.db')\n")
    with pytest.raises(CannotOpen):
        load_app("tasks:app")


def test_a_file_with_the_name_of_a_loaded_module_is_refused(module: Module) -> None:
    module("json.py", ONE)
    assert "has the name of another module, json" in str(refused("./json.py"))


def test_an_interrupt_is_not_swallowed(module: Module) -> None:
    module("tasks.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_app("tasks:app")


def test_loading_twice_gives_the_same_app(module: Module, monkeypatch: Any) -> None:
    module("tasks.py", ONE)
    assert load_app("tasks:app") is load_app("./tasks.py")
    load_app("tasks").close()
