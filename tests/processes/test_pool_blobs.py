"""Tasks with pool="process" and large payloads: these go by reference, and not through the pipe."""

from yard import Yard

from holdfast.model.job import NewJob
from support.blob_stores import blob_files

LARGE = "é" * 200_000


def send(yard: Yard, text: str) -> int:
    return yard.app.store.jobs.insert(NewJob("default", "print_args", f'{{"text": "{text}"}}', max_attempts=1)).id


def test_a_process_reads_its_large_payload_and_keeps_its_large_result(yard: Yard) -> None:
    yard.start(pool=1)
    job = yard.ends(yard.app.jobs.get(send(yard, LARGE)))
    assert job.result == [LARGE, 3] and len(blob_files(str(yard.database))) == 2


def test_one_that_is_gone_fails_its_job_and_not_the_process(yard: Yard) -> None:
    lost = yard.app.jobs.get(send(yard, LARGE))
    for path in blob_files(str(yard.database)):
        path.unlink()
    yard.start(pool=1)
    assert yard.ends(lost, "failed").error_code == "RESOURCE:BLOB_MISSING"
    assert yard.ends(yard.app.jobs.get(send(yard, "x"))).result == ["x", 3]
