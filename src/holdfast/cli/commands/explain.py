"""`holdfast explain`: explain why a job is not running."""

import click

from ..options import DatabaseOption, complete_jobs, example, job_id, read_options
from ..output import document, paragraph


@click.command(epilog=example("holdfast explain 42 --db app.db"))
@click.argument("id", type=job_id, shell_complete=complete_jobs)
@read_options
def explain(database: DatabaseOption, id: int, as_json: bool) -> None:
    """Explain why a job is not running, and what to do about it.

    Checks the job's state, schedule and blockers, whether its queue is paused, whether a live worker serves the queue
    and has the task, whether that worker has a free slot, and how many jobs are ahead of it. For a finished job, says
    how it finished.
    """
    with database.open() as app:
        explanation = app.jobs.explain(id)
    if as_json:
        document(explanation)
    else:
        paragraph(explanation.reason)
        paragraph(explanation.advice)
