"""Reading jobs that are to be pruned: exporting them, or weighing what would go with them in a dry run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..blobs import is_reference
from ..errors import BlobMissing
from ..model.pruning import Rest, Weight
from .statements import SharedDatabase, Statements, as_json

T = TypeVar("T")
SOME = 1000
BYTES_OF_A_JOB = 210  # measured, with its share of the indexes; so are the next two
BYTES_OF_AN_ATTEMPT = 65
BYTES_OF_AN_EVENT = 52


class Weigh:
    def __init__(self, db: SharedDatabase, sql: Statements, fetch: Callable[[str], bytes]) -> None:
        """fetch: reads a large payload."""
        self._db, self._sql, self._fetch = db, sql, fetch

    def export(self, ids: Collection[int]) -> Iterator[bytes]:
        values = {"batch": as_json(sorted(ids))}

        def work(connection: Any) -> tuple[list[dict[str, Any]], ...]:
            names = (self._sql.whole_jobs, self._sql.whole_attempts, self._sql.whole_events, self._sql.whole_blockers)
            return tuple(_as_dicts(connection.execute(statement, values)) for statement in names)

        jobs, *others = self._db.read(work)
        parts: dict[str, dict[int, list[dict[str, Any]]]] = {"attempts": {}, "events": {}, "blockers": {}}
        for found, rows in zip(parts.values(), others, strict=True):
            for row in rows:
                found.setdefault(row.pop("job_id"), []).append(row)
        for event in others[1]:
            event["detail"] = _as_json_value(event["detail"])
        for job in jobs:
            for name in ("args", "result", "tags"):
                job[name] = _as_json_value(job[name])
            for name in ("args", "result"):
                blob, inline = job[f"{name}_blob"], job[name]
                if isinstance(inline, msgspec.Raw) and is_reference(bytes(inline), blob):
                    with suppress(BlobMissing):  # or damaged: then only its name is exported
                        job[name] = msgspec.Raw(self._fetch(blob))
            yield msgspec.json.encode(job | {name: found.get(job["id"], []) for name, found in parts.items()})

    def weigh(self, ids: Collection[int]) -> list[Weight]:
        values = {"batch": as_json(sorted(ids))}

        def work(connection: Any) -> tuple[list[Any], ...]:
            names = (self._sql.weigh_jobs, self._sql.callbacks_of_batches, self._sql.edges_of_jobs)
            return tuple(connection.execute(statement, values).fetchall() for statement in names)

        jobs, callbacks, edges = self._db.read(work)
        batches_of, chains_of = _grouped((job, batch) for batch, job in callbacks), _grouped(edges)
        found = []
        for id, status, queue, task, batch, args, result, attempts, events, size in jobs:
            blobs = tuple(name for name in (args, result) if name is not None)
            size += BYTES_OF_A_JOB + attempts * BYTES_OF_AN_ATTEMPT + events * BYTES_OF_AN_EVENT
            links = tuple(batches_of.get(id, ())), tuple(chains_of.get(id, ()))
            found.append(Weight(id, status, queue, task, batch, *links, blobs, attempts, events, size))
        return found

    def weigh_rest(self, rest: Rest) -> dict[str, int]:
        counts = {"batches": self._count_batches(rest), "blobs": self._count_blobs(rest.references)}
        for rows in rest.old:
            if rows.what not in counts:
                counts[rows.what] = self._number(getattr(self._sql, f"count_old_{rows.what}"), rows.bounds)
        return counts

    def _count_batches(self, rest: Rest) -> int:
        """Count those that are empty, or would lose their last member and callback."""
        touched = {*rest.members, *rest.callbacks}
        rows = next((rows for rows in rest.old if rows.what == "batches"), None)
        while rows is not None and (found := self._rows(self._sql.old_batches, rows.bounds)):
            touched.update(batch for batch, may_go in found if may_go)
            rows = replace(rows, after=found[-1][0])
        count = 0
        for some in _chunks(sorted(touched)):
            for batch, members, *jobs in self._rows(self._sql.fates_of_batches, {"batches": as_json(some)}):
                callbacks = {job for job in jobs if job is not None}
                is_empty = members == rest.members.get(batch, 0)
                count += is_empty and callbacks <= rest.callbacks.get(batch, set())
        return count

    def _count_blobs(self, references: dict[str, int]) -> int:
        """Count those that no job refers to, or would refer to any more."""
        count = self._number(self._sql.count_unused_blobs, {})
        for some in _chunks(sorted(references)):
            rows = self._rows(self._sql.references_to_blobs, {"names": as_json(some)})
            count += sum(references[name] == n for name, n in rows)
        return count

    def _number(self, statement: str, values: dict[str, Any]) -> int:
        return int(self._rows(statement, values)[0][0])

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        rows: list[Any] = self._db.read(lambda connection: connection.execute(statement, values).fetchall())
        return rows


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _chunks(things: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(things), SOME):
        yield things[start : start + SOME]


def _as_dicts(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _as_json_value(text: Any) -> Any:
    """Return JSON as such; and text that is no JSON, since somebody put it there by hand, as text."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError):
        return text
    return msgspec.Raw(text.encode() if isinstance(text, str) else text)
