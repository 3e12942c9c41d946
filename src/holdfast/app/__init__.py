"""The façade: what a program imports and calls."""

from .holdfast import Holdfast

__all__ = ["Holdfast"]
