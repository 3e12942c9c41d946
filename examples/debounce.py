"""Many saves, one job: a key and on_conflict="replace" move a waiting job and give it the newest arguments."""

import tempfile
from pathlib import Path

from holdfast import Holdfast


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Holdfast(Path(folder) / "app.db") as app:
        run(app)


def run(app: Holdfast) -> None:
    @app.task(queue="search")
    def index_document(document: str, version: int) -> None:
        """A worker runs this. Until there is one, the jobs wait."""

    def saved(document: str, version: int) -> None:
        later = index_document.using(key=document, on_conflict="replace", delay=30)
        job = later.enqueue(document, version)
        print(f"   {document}, version {version}: job {job.id}, {'replaced' if job.deduplicated else 'new'}")

    print("Two documents are saved again and again:")
    for version in (1, 2, 3):
        saved("report.txt", version)
    saved("notes.txt", 1)
    saved("report.txt", 4)

    print("What will be indexed, 30 seconds after the last save of each:")
    for job in reversed(app.jobs.list(task=index_document.name)):
        print(f"   job {job.id}: {job.status}, {job.args}")

    report = app.jobs.list(key="report.txt")[0]
    print("What happened to the first of them:")
    print(f"   {', '.join(entry.name for entry in app.jobs.history(report.id))}")


if __name__ == "__main__":
    main()
