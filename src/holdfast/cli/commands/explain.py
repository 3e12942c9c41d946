"""`holdfast explain`: why a job is not running, and what would change that."""

import click

from ..options import DatabaseOption, complete_jobs, example, job_id, takes_database
from ..output import document, json_option, paragraph


@click.command(epilog=example("holdfast explain 42 --db app.db"))
@click.argument("id", type=job_id, shell_complete=complete_jobs)
@takes_database
@json_option
def explain(database: DatabaseOption, id: int, as_json: bool) -> None:
    """Say why a job is not running, and what would change that.

    One sentence, and the command to run. Of a job that has ended it says how.
    """
    with database.open() as app:
        found = app.jobs.explain(id)
    if as_json:
        document({"id": found.job_id, "status": found.status, "reason": found.reason, "advice": found.advice})
    else:
        paragraph(found.reason)
        paragraph(found.advice)
