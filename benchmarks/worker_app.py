"""The app of worker processes: `holdfast worker benchmarks.worker_app:app`."""

from holdfast import Holdfast

from .workload import nap, noop, noop_async

app = Holdfast()  # HOLDFAST_URL names the file
app.task(noop)
app.task(noop_async)
app.task(max_attempts=5)(nap)
