"""Load the app that a command line names as `module:app`.

The only module that imports user code by name. It runs the program that the operator named.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ..app import App
from ..app.task import Task
from ..errors import CannotLoadApp, StoreError
from ..failure import shorten
from ..validate import shown
from .holdfast import Holdfast

EXAMPLE = "such as 'myproject.jobs:app'"


def load_app(reference: str) -> Holdfast:
    """Load an app. reference: `module:app`, `module` with one app in it, or a file such as `tasks.py:app`.

    Django is set up first, as its own commands do, if the environment names its settings.
    """
    location, colon, name = reference.partition(":")
    if not location or (colon and not name):
        raise CannotLoadApp(f"the app must be given as module:app, {EXAMPLE}, got {shown(reference)}")
    module = _load_file(location) if _is_file(location) else _load_module(location)
    return _named_app(module, location, name) if name else _only_app(module, location)


def load_task(module: str, name: str) -> Task[..., Any]:
    """Return the task of this name from a module, directly or through its app."""
    loaded = importlib.import_module(module)
    for value in list(vars(loaded).values()):
        task = value if isinstance(value, Task) else value.tasks.get(name) if isinstance(value, App) else None
        if task is not None and task.name == name:
            return task
    raise CannotLoadApp(f"{module} has neither the task {name!r} nor its app at module level")


def _is_file(location: str) -> bool:
    return location.endswith(".py") or "/" in location or os.sep in location


def _load_file(location: str) -> ModuleType:
    """Import a file under its module name, as pool processes will, from the folder above its packages."""
    path = Path(location).resolve()
    if not path.is_file():
        raise CannotLoadApp(f"there is no file {shown(location)}: check the path, or name a module, {EXAMPLE}")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise CannotLoadApp(
            f"{shown(location)} cannot be imported: the file name must have only letters, digits and underscores, "
            "and end in .py"
        )
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    module = _import(".".join(parts), str(folder))
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise CannotLoadApp(
            f"{shown(location)} has the name of another module, {module.__name__}, which Python found first: rename "
            "the file"
        )
    return module


def _load_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise CannotLoadApp(f"{shown(name)} is not the name of a module: write module:app, {EXAMPLE}")
    return _import(name, str(Path.cwd()))


def _import(name: str, folder: str) -> ModuleType:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        set_up_django()
        return importlib.import_module(name)
    except (KeyboardInterrupt, StoreError):  # the error of a database that cannot be opened is clear enough
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _raised(name, error) from error
        raise CannotLoadApp(
            f"there is no module {shown(error.name)} in {folder} or among Python's packages"
        ) from None
    except BaseException as error:  # the user's code, which may do anything, even sys.exit()
        raise _raised(name, error) from error


def set_up_django() -> None:
    """Set Django up if the environment names its settings, so that modules with models can be imported."""
    if os.environ.get("DJANGO_SETTINGS_MODULE") and importlib.util.find_spec("django") is not None:
        import django

        django.setup()


def _raised(name: str, error: BaseException) -> CannotLoadApp:
    """Return the error for a module that raised during its import, with its part of the traceback."""
    description = type(error).__name__
    with suppress(Exception):
        description = f"{description}: {shorten(str(error), 200)}" if str(error) else description
    link = error.__traceback__
    while link is not None and _is_import_machinery(link.tb_frame.f_code.co_filename):
        link = link.tb_next
    lines = traceback.format_exception(error.with_traceback(link))
    return CannotLoadApp(f"{name} could not be imported: it raised {description}", "".join(lines))


def _is_import_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen importlib") or file == importlib.__file__


def _named_app(module: ModuleType, location: str, name: str) -> Holdfast:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotLoadApp(f"{location} has no {shown(part)}{_hint(module)}")
        found = getattr(found, part)
    if not isinstance(found, Holdfast):
        raise CannotLoadApp(f"{location}:{name} must be a Holdfast, got {type(found).__qualname__}{_hint(module)}")
    return found


def _only_app(module: ModuleType, location: str) -> Holdfast:
    apps = _apps(module)
    if not apps:
        raise CannotLoadApp(f"{location} has no Holdfast: create one there, such as app = Holdfast('app.db')")
    if len({id(app) for app in apps.values()}) > 1:
        choices = " or ".join(f"{location}:{name}" for name in apps)
        raise CannotLoadApp(f"{location} has several apps: choose one, {choices}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, Holdfast]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Holdfast)}


def _hint(module: ModuleType) -> str:
    names = list(_apps(module))
    return f"; its apps are {', '.join(names)}" if names else ", and no Holdfast"
