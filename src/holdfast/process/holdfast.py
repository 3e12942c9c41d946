"""`Holdfast`: the app, and what runs its jobs."""

from ..app import App


class Holdfast(App):
    __doc__ = App.__doc__
