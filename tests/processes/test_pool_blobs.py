"""Tasks with pool="process" and large payloads: these go by reference, and not through the pipe."""

from worker_processes import Processes

from holdfast.model.job import NewJob
from support.blob_stores import blob_files

LARGE = "é" * 200_000


def send(processes: Processes, text: str) -> int:
    return processes.app.store.jobs.insert(
        NewJob("default", "print_args", f'{{"text": "{text}"}}', max_attempts=1)
    ).id


def test_a_process_reads_its_large_payload_and_keeps_its_large_result(processes: Processes) -> None:
    processes.start(pool=1)
    job = processes.ends(processes.app.jobs.get(send(processes, LARGE)))
    assert job.result == [LARGE, 3] and len(blob_files(str(processes.database))) == 2


def test_one_that_is_gone_fails_its_job_and_not_the_process(processes: Processes) -> None:
    lost = processes.app.jobs.get(send(processes, LARGE))
    for path in blob_files(str(processes.database)):
        path.unlink()
    processes.start(pool=1)
    assert processes.ends(lost, "failed").error_code == "RESOURCE:BLOB_MISSING"
    assert processes.ends(processes.app.jobs.get(send(processes, "x"))).result == ["x", 3]
