"""`Holdfast`, which puts app, workers, upkeep and observation together, and the worker processes."""

from typing import TYPE_CHECKING

from ..lazy import lazy_imports

if TYPE_CHECKING:
    from .holdfast import Holdfast


__all__ = ["Holdfast"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__, {"Holdfast": "holdfast"})
