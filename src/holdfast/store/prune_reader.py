"""Reading what pruning deletes: export jobs for the archive, and count rows for a dry run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..blobs import is_reference
from ..errors import BlobMissing
from ..model.pruning import Dependents, JobFootprint
from .statements import SharedDatabase, Statements, as_json

T = TypeVar("T")
CHUNK_ROWS = 1000
JOB_BYTES, ATTEMPT_BYTES, EVENT_BYTES = 210, 65, 52  # measured averages, with their share of the indexes


class PruneReader:
    def __init__(self, db: SharedDatabase, sql: Statements, fetch: Callable[[str], bytes]) -> None:
        """fetch: reads a large payload."""
        self._db, self._sql, self._fetch = db, sql, fetch

    def export(self, ids: Collection[int]) -> Iterator[bytes]:
        values, sql = {"batch": as_json(sorted(ids))}, self._sql
        statements = {"attempts": sql.export_attempts, "events": sql.export_events, "blockers": sql.export_blockers}

        def work(connection: Any) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
            jobs = _as_dicts(connection.execute(sql.export_jobs, values))
            return jobs, {name: _as_dicts(connection.execute(text, values)) for name, text in statements.items()}

        jobs, details = self._db.read(work)
        for event in details["events"]:
            event["detail"] = _as_json_value(event["detail"])
        by_job = {name: _grouped((row.pop("job_id"), row) for row in rows) for name, rows in details.items()}
        for job in jobs:
            for name in ("args", "result", "tags"):
                job[name] = _as_json_value(job[name])
            for name in ("args", "result"):
                blob, inline = job[f"{name}_blob"], job[name]
                if isinstance(inline, msgspec.Raw) and is_reference(bytes(inline), blob):
                    with suppress(BlobMissing):  # missing or damaged: export only its name
                        job[name] = msgspec.Raw(self._fetch(blob))
            yield msgspec.json.encode(job | {name: rows.get(job["id"], []) for name, rows in by_job.items()})

    def footprints(self, ids: Collection[int]) -> list[JobFootprint]:
        values = {"batch": as_json(sorted(ids))}

        def work(connection: Any) -> tuple[list[Any], ...]:
            names = (self._sql.footprints, self._sql.callbacks_of_batches, self._sql.blockers_of_jobs)
            return tuple(connection.execute(statement, values).fetchall() for statement in names)

        jobs, callbacks, edges = self._db.read(work)
        batches_of, chains_of = _grouped((job, batch) for batch, job in callbacks), _grouped(edges)
        found = []
        for id, status, queue, task, batch, args, result, attempts, events, size in jobs:
            blobs = tuple(name for name in (args, result) if name is not None)
            size += JOB_BYTES + attempts * ATTEMPT_BYTES + events * EVENT_BYTES
            links = tuple(batches_of.get(id, ())), tuple(chains_of.get(id, ()))
            found.append(JobFootprint(id, status, queue, task, batch, *links, blobs, attempts, events, size))
        return found

    def count_dependents(self, dependents: Dependents) -> dict[str, int]:
        counts = {"batches": self._count_batches(dependents), "blobs": self._count_blobs(dependents.references)}
        for scan in dependents.scans:
            if scan.kind not in counts:
                counts[scan.kind] = self._number(getattr(self._sql, f"count_expired_{scan.kind}"), scan.parameters)
        return counts

    def _count_batches(self, dependents: Dependents) -> int:
        """Count batches that are empty, or would lose their last member and callback."""
        candidates = {*dependents.members, *dependents.callbacks}
        scan = next((scan for scan in dependents.scans if scan.kind == "batches"), None)
        while scan is not None and (found := self._rows(self._sql.expired_batches, scan.parameters)):
            candidates.update(batch for batch, has_expired in found if has_expired)
            scan = replace(scan, after=found[-1][0])
        count = 0
        for chunk in _chunks(sorted(candidates)):
            for batch, members, *jobs in self._rows(self._sql.remaining_of_batches, {"batches": as_json(chunk)}):
                callbacks = {job for job in jobs if job is not None}
                is_empty = members == dependents.members.get(batch, 0)
                count += is_empty and callbacks <= dependents.callbacks.get(batch, set())
        return count

    def _count_blobs(self, references: dict[str, int]) -> int:
        """Count blobs that no job refers to, or would refer to after the deletion."""
        count = self._number(self._sql.count_unused_blobs, {})
        for chunk in _chunks(sorted(references)):
            rows = self._rows(self._sql.blob_references, {"names": as_json(chunk)})
            count += sum(references[name] == n for name, n in rows)
        return count

    def _number(self, statement: str, values: dict[str, Any]) -> int:
        return int(self._rows(statement, values)[0][0])

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = self._db.read(lambda connection: connection.execute(statement, values).fetchall())
        return rows


def _grouped(pairs: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), CHUNK_ROWS):
        yield items[start : start + CHUNK_ROWS]


def _as_dicts(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _as_json_value(text: Any) -> Any:
    """Return JSON as it is. Text that is not JSON was inserted by hand: return it as a string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError):
        return text
    return msgspec.Raw(text.encode() if isinstance(text, str) else text)
