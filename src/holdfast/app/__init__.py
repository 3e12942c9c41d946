"""The façade: what a program imports and calls."""

from .app import App

__all__ = ["App"]
