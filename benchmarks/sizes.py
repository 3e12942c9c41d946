"""How many bytes a job takes in the file."""

from collections.abc import Iterator
from pathlib import Path

from holdfast import Holdfast

from .floors import PlainSender
from .measure import Effort, Figure
from .workload import BODY

JOBS = 10_000


def bytes_per_job(folder: Path, effort: Effort) -> Iterator[Figure]:
    jobs = effort.of(JOBS)
    floor = PlainSender(folder / "floor-size.db", "OFF")
    for _ in range(jobs):
        floor.send(BODY)
    plain = floor.bytes_used() / jobs
    floor.close()
    with Holdfast(folder / "size.db") as app:
        queue = app.queue("inbox")
        app.store.checkpoint()
        empty = (folder / "size.db").stat().st_size
        queue.send_many([BODY] * jobs)
        sent = _grown(app, folder, empty) / jobs
        for _ in range(0, jobs, 100):
            for message in queue.receive_many(100):
                message.ack()
        settled = _grown(app, folder, empty) / jobs
    yield Figure("bytes per job: sent", floor=f"{plain:,.0f} B", ours=f"{sent:,.0f} B", value=sent / plain)
    yield Figure("bytes per job: sent, received and acked", floor="–", ours=f"{settled:,.0f} B")


def _grown(app: Holdfast, folder: Path, empty: int) -> int:
    app.store.checkpoint()
    return (folder / "size.db").stat().st_size - empty
