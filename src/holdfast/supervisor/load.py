"""From `module:app`, as it is written on a command line, to the Holdfast it names.

The only place that imports by name: what it runs is the program that the person at the command line named.
"""

import importlib
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
from .holdfast import Holdfast

EXAMPLE = "such as 'myproject.jobs:app'"


def load_app(reference: str) -> Holdfast:
    """`module:app`, `module` with one Holdfast in it, or a file such as `./tasks.py` or `tasks.py:app`."""
    place, colon, name = reference.partition(":")
    if not place or (colon and not name):
        raise CannotLoadApp(f"{_shown(reference)} names no app: write module:app, {EXAMPLE}")
    module = _load_file(place) if _is_file(place) else _load_module(place)
    return _named(module, place, name) if name else _only_one(module, place)


def load_task(module: str, name: str) -> Task[..., Any]:
    """The task of this name of a Holdfast in the module, which the worker itself has loaded from there."""
    loaded = importlib.import_module(module)
    for value in list(vars(loaded).values()):
        task = value if isinstance(value, Task) else value.tasks.get(name) if isinstance(value, App) else None
        if task is not None and task.name == name:
            return task
    raise CannotLoadApp(f"{module} has neither the task {name!r} nor the Holdfast that it belongs to")


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _load_file(place: str) -> ModuleType:
    """Import the file by its name, as its own processes will, from the folder above its packages."""
    path = Path(place).resolve()
    if not path.is_file():
        raise CannotLoadApp(f"there is no file {_shown(place)}: check the path, or name a module, {EXAMPLE}")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise CannotLoadApp(
            f"{_shown(place)} cannot be imported: name the file with letters, digits and underscores, ending in .py"
        )
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    module = _import(".".join(parts), str(folder))
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise CannotLoadApp(
            f"{_shown(place)} has the name of another module, {module.__name__}, which Python found first: rename it"
        )
    return module


def _load_module(place: str) -> ModuleType:
    if not all(part.isidentifier() for part in place.split(".")):
        raise CannotLoadApp(f"{_shown(place)} is not the name of a module: write module:app, {EXAMPLE}")
    return _import(place, str(Path.cwd()))


def _import(name: str, folder: str) -> ModuleType:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except (KeyboardInterrupt, StoreError):  # a database that cannot be opened says so itself
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _raised(name, error) from error
        raise CannotLoadApp(
            f"there is no module {_shown(error.name)}: it was looked for in {folder} and where Python's packages are"
        ) from None
    except BaseException as error:  # the user's code, which may do anything, even sys.exit()
        raise _raised(name, error) from error


def _raised(name: str, error: BaseException) -> CannotLoadApp:
    """The module raised while it was imported: its own part of the traceback tells where."""
    what = type(error).__name__
    with suppress(Exception):
        what = f"{what}: {shorten(str(error), 200)}" if str(error) else what
    link = error.__traceback__
    while link is not None and _is_machinery(link.tb_frame.f_code.co_filename):
        link = link.tb_next
    lines = traceback.format_exception(error.with_traceback(link))
    return CannotLoadApp(f"{name} could not be imported: it raised {what}", "".join(lines))


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen importlib") or file == importlib.__file__


def _named(module: ModuleType, place: str, name: str) -> Holdfast:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise CannotLoadApp(f"{place} has no {_shown(part)}{_hint(module)}")
        found = getattr(found, part)
    if not isinstance(found, Holdfast):
        raise CannotLoadApp(f"{place}:{name} is no Holdfast but of type {type(found).__qualname__}{_hint(module)}")
    return found


def _only_one(module: ModuleType, place: str) -> Holdfast:
    apps = _apps(module)
    if not apps:
        raise CannotLoadApp(f"{place} has no Holdfast: make one there, such as app = Holdfast('app.db')")
    if len({id(app) for app in apps.values()}) > 1:
        choices = " or ".join(f"{place}:{name}" for name in apps)
        raise CannotLoadApp(f"{place} has several apps: say which, {choices}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, Holdfast]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Holdfast)}


def _hint(module: ModuleType) -> str:
    names = list(_apps(module))
    return f"; its apps are {', '.join(names)}" if names else ", and no other Holdfast either"


def _shown(text: str) -> str:
    return shorten(repr(text), 100)
