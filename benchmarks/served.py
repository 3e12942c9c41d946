"""The app of a worker that runs as a process of its own: `python -m holdfast worker benchmarks.served:app`."""

from holdfast import Holdfast

from .handlers import noop

app = Holdfast()  # HOLDFAST_URL says where
app.task(noop)
