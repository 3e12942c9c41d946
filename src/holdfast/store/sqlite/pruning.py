"""Deleting what is old, in short transactions: jobs that stand alone, and chains as a whole."""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import msgspec

from ...blobs import is_reference
from ...errors import BlobMissing
from ...retention import ENDED, Expiry, Mark
from ..pruned import LONG_HISTORY, DoomedChain, Ended, Pages, Pruned, rows_of
from .checkpoint import size_of
from .criteria import as_json
from .duty import Duty
from .files import require_room

MOST_EDGES = 20_000
STEPS_OF_VACUUM = 10_000  # of SQLite's virtual machine, between two looks at whether to go on


class Pruning(Duty):
    # --- to find what may go ---

    def ended_after(self, status: str, after: Mark, until: Mark, limit: int) -> list[Ended]:
        values = {
            "status": status,
            "after": after[0],
            "after_id": after[1],
            "until": until[0],
            "until_id": until[1],
            "limit": limit,
        }
        rows = self._read(lambda connection: connection.execute(self._sql.ended_after, values).fetchall())
        return [Ended(*row) for row in rows]

    def doomed_chains(self, chains: Collection[int], expiry: Expiry, gone: Collection[int] = ()) -> list[DoomedChain]:
        return self._read(lambda connection: self._judge(connection, chains, expiry, gone))

    def _judge(
        self, connection: sqlite3.Connection, chains: Collection[int], expiry: Expiry, gone: Collection[int] = ()
    ) -> list[DoomedChain]:
        """Of these chains, those whose jobs have all ended long ago, counted from the end of the chain; and for which
        nobody waited that will be there still. gone: jobs that are to be taken for deleted."""
        values = {"chains": as_json(sorted(chains)), "limit": MOST_EDGES}
        found: dict[int, list[Any]] = {}
        for chain, *member in connection.execute(self._sql.members_of_chains, values).fetchall():
            found.setdefault(chain, []).append(member)
        batches = self._ends_of_batches(connection, {member[5] for members in found.values() for member in members})
        doomed = {chain: one for chain, members in found.items() if (one := _whole(chain, members, expiry, batches))}
        self._spare_awaited(connection, doomed, gone)
        return list(doomed.values())

    def _ends_of_batches(self, connection: sqlite3.Connection, batches: set[int | None]) -> dict[int, int | None]:
        """None: it goes on, or its callback may still ask how its members ended."""
        ids = sorted(batch for batch in batches if batch is not None)
        if not ids:
            return {}
        return dict(connection.execute(self._sql.ends_of_batches, {"batches": as_json(ids)}).fetchall())

    def _spare_awaited(
        self, connection: sqlite3.Connection, doomed: dict[int, DoomedChain], gone: Collection[int]
    ) -> None:
        """Those for which somebody waited that stays, and may need its result when an operator brings it back."""
        order = sorted(doomed)
        values = {"chains": as_json(order), "limit": MOST_EDGES}
        edges = connection.execute(self._sql.waiters_of_chains, values).fetchall()
        if (
            len(edges) == MOST_EDGES
        ):  # there may be more of the last one, and of those behind it: they go another time
            for chain in order[order.index(edges[-1][0]) :]:
                del doomed[chain]
        waiters: dict[int, list[int]] = {}
        awaits: dict[int, set[int]] = {}
        for chain, waiting, its_chain in edges:
            if waiting not in gone:
                waiters.setdefault(its_chain, []).append(chain)
                awaits.setdefault(chain, set()).add(its_chain)
        spared = [chain for chain in doomed if not awaits.get(chain, set()) <= doomed.keys()]
        while spared:
            chain = spared.pop()
            if doomed.pop(chain, None) is not None:
                spared += waiters.get(chain, [])

    def edges_of(self, ids: Collection[int]) -> dict[int, set[int]]:
        """Which of these jobs waited for which chains."""
        return self._read(lambda connection: self._edges(connection, ids))

    def _edges(self, connection: sqlite3.Connection, ids: Collection[int]) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for job, chain in connection.execute(self._sql.edges_of_jobs, {"batch": as_json(sorted(ids))}).fetchall():
            found.setdefault(job, set()).add(chain)
        return found

    # --- succeeded, failed, cancelled -> gone ---

    def prune_alone(self, token: str, status: str, jobs: Sequence[Ended], counts: dict[str, int]) -> Pruned | None:
        """Jobs that have nothing to do with others, unless that has changed. None: another has taken over."""
        ids = [job.id for job in jobs]
        values = {"batch": as_json(ids), "status": status, "until": max(job.finished_at for job in jobs)}

        def work(connection: sqlite3.Connection) -> Pruned:
            freed = {chain for chains in self._edges(connection, ids).values() for chain in chains}
            deleted = connection.execute(self._sql.prune_alone, values).rowcount
            batches = self._prune_batches(connection, ids, ())
            return Pruned({status: deleted, "batches": batches}, tuple(sorted(freed)), sum(job.rows for job in jobs))

        return self._do_upkeep(token, counts, work)

    def prune_chains(
        self, token: str, chains: Sequence[DoomedChain], expiry: Expiry, counts: dict[str, int]
    ) -> Pruned | None:
        """Those of them that may go still, and have the same jobs. None: another has taken over."""

        def work(connection: sqlite3.Connection) -> Pruned:
            doomed = self._judge(connection, [one.chain for one in chains], expiry)
            known = {one.chain: one.jobs for one in chains}
            return self._delete(connection, [one for one in doomed if one.jobs == known[one.chain]])

        return self._do_upkeep(token, counts, work)

    def _delete(self, connection: sqlite3.Connection, doomed: list[DoomedChain]) -> Pruned:
        jobs = {job: status for one in doomed for job, status in one.jobs.items()}
        if not jobs:
            return Pruned({})
        values = {"batch": as_json(sorted(jobs))}
        freed = {chain for chains in self._edges(connection, jobs).values() for chain in chains}
        batches = [row[0] for row in connection.execute(self._sql.batches_of_jobs, values).fetchall()]
        connection.execute(self._sql.delete_jobs, values)
        counts = {status: sum(one == status for one in jobs.values()) for status in ENDED}
        counts["batches"] = self._prune_batches(connection, jobs, batches)
        self.resolve_here(connection)  # triggers have noted that members and blockers are gone
        freed -= {one.chain for one in doomed}
        return Pruned(counts, tuple(sorted(freed)), sum(one.rows for one in doomed))

    def _prune_batches(
        self, connection: sqlite3.Connection, callbacks: Collection[int], batches: Collection[int]
    ) -> int:
        """Those that lost their last member, or the job that they called back."""
        values = {"batch": as_json(sorted(callbacks))}
        found = {row[0] for row in connection.execute(self._sql.batches_of_callbacks, values).fetchall()} | set(
            batches
        )
        if not found:
            return 0
        return connection.execute(self._sql.prune_batches, {"batches": as_json(sorted(found))}).rowcount

    def prune_end_of_chain(self, token: str, one: DoomedChain, limit: int, counts: dict[str, int]) -> Pruned | None:
        """Of a chain that is too long for one transaction, the last jobs; the first goes last. Once its end is gone,
        nothing of it can come back."""

        def work(connection: sqlite3.Connection) -> Pruned:
            values = {"chain": one.chain, "limit": limit, "until": one.ended_at}
            if connection.execute(self._sql.chain_may_go, values).fetchone() is None:
                return Pruned({})
            jobs = dict(connection.execute(self._sql.end_of_chain, values).fetchall())
            return self._delete(connection, [DoomedChain(one.chain, jobs, len(jobs) * rows_of(1), one.ended_at)])

        return self._do_upkeep(token, counts, work)

    def prune_history(
        self, token: str, job: int, status: str, finished_at: int, limit: int, counts: dict[str, int]
    ) -> Pruned | None:
        """Some of the events and attempts of a job that has a great many, before it goes itself."""
        values = {"job": job, "status": status, "until": finished_at, "limit": limit}

        def work(connection: sqlite3.Connection) -> Pruned:
            rows = connection.execute(self._sql.trim_events, values).rowcount
            rows += connection.execute(self._sql.trim_attempts, values).rowcount
            return Pruned({}, rows=rows)

        return self._do_upkeep(token, counts, work)

    # --- what belongs to no job ---

    def prune_minutes(self, token: str, before: int, limit: int, counts: dict[str, int]) -> Pruned | None:
        return self._prune_by("minutes", self._sql.prune_minutes, {"before": before, "limit": limit}, token, counts)

    def minutes_before(self, before: int) -> bool:
        found = self._read(lambda connection: connection.execute(self._sql.first_minute).fetchone())
        return found is not None and found[0] < before

    def prune_failures(self, token: str, rows: Any, before: int, counts: dict[str, int]) -> Pruned | None:
        return self._prune_by(
            "failures", self._sql.prune_failures, {"rows": as_json(rows), "before": before}, token, counts
        )

    def failures_before(self, before: int, limit: int) -> list[Any]:
        values = {"before": before, "limit": limit}
        return self._read(lambda connection: connection.execute(self._sql.old_failures, values).fetchall())

    def prune_tracebacks(self, token: str, rows: Any, before: int, counts: dict[str, int]) -> Pruned | None:
        values = {"rows": as_json(rows), "before": before}
        return self._prune_by("tracebacks", self._sql.prune_tracebacks, values, token, counts)

    def tracebacks_after(self, after: str, before: int, limit: int) -> list[tuple[str, bool]]:
        values = {"after": after, "before": before, "limit": limit}
        return self._read(lambda connection: connection.execute(self._sql.some_tracebacks, values).fetchall())

    def prune_audit(self, token: str, rows: Any, counts: dict[str, int]) -> Pruned | None:
        return self._prune_by("audit", self._sql.prune_audit, {"rows": as_json(rows)}, token, counts)

    def audit_before(self, before: int, limit: int) -> list[int]:
        rows = self._read(lambda connection: connection.execute(self._sql.oldest_audit, {"limit": limit}).fetchall())
        return [event for event, at in rows if at < before]

    def prune_empty_batches(self, token: str, rows: Any, counts: dict[str, int]) -> Pruned | None:
        return self._prune_by("batches", self._sql.prune_batches, {"batches": as_json(rows)}, token, counts)

    def batches_after(self, after: int, before: int, limit: int) -> list[tuple[int, bool]]:
        values = {"after": after, "before": before, "limit": limit}
        return self._read(lambda connection: connection.execute(self._sql.some_batches, values).fetchall())

    def _prune_by(
        self, what: str, statement: str, values: dict[str, Any], token: str, counts: dict[str, int]
    ) -> Pruned | None:
        def work(connection: sqlite3.Connection) -> Pruned:
            deleted = connection.execute(statement, values).rowcount
            return Pruned({what: deleted}, rows=deleted)

        return self._do_upkeep(token, counts, work)

    def prune_totals(self) -> int:
        """Of queues and tasks of which no ended job is left."""
        if not self._read(lambda connection: connection.execute(self._sql.any_empty_total).fetchone()):
            return 0
        return self._run(lambda connection: connection.execute(self._sql.prune_totals).rowcount)

    # --- to be written elsewhere first ---

    def whole_jobs(self, ids: Collection[int]) -> Iterator[bytes]:
        """Each as a line of JSON, with its attempts, events and what it waited for."""
        values = {"batch": as_json(sorted(ids))}

        def work(connection: sqlite3.Connection) -> tuple[list[dict[str, Any]], ...]:
            names = (self._sql.whole_jobs, self._sql.whole_attempts, self._sql.whole_events, self._sql.whole_blockers)
            return tuple(_as_dicts(connection.execute(statement, values)) for statement in names)

        jobs, *others = self._read(work)
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
                    with suppress(BlobMissing):  # or damaged: then there is no more of it than its name
                        job[name] = msgspec.Raw(self.fetch(blob))
            yield msgspec.json.encode(job | {name: found.get(job["id"], []) for name, found in parts.items()})

    # --- space ---

    def pages(self) -> Pages:
        counts = self._read(lambda connection: connection.execute(self._sql.page_counts).fetchone())
        return Pages(*(*counts, size_of(self._options.path)))

    def shrink(self, pages: int, seconds: float) -> tuple[int, float]:
        """Give so many free pages back to the system, or fewer, as time allows. Returns how many, and the seconds."""

        def work(connection: sqlite3.Connection) -> tuple[int, float]:
            begun = perf_counter()
            for done in range(pages):
                # One each time: Python takes one step of a statement without columns, and each step is a page.
                connection.execute("PRAGMA incremental_vacuum(1)")
                if perf_counter() - begun > seconds:
                    return done + 1, perf_counter() - begun
            return pages, perf_counter() - begun

        return self._run(work)

    def vacuum(self, tick: Callable[[], None]) -> None:
        """Write the whole file anew. tick: called now and then; what it raises ends it, and nothing has happened."""
        require_room(self._options.path, self.pages().used_bytes)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA temp_store = FILE")  # it may be larger than the memory
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            raised: list[BaseException] = []

            def go_on() -> int:
                try:
                    tick()
                except BaseException as error:  # noqa: BLE001  raised again below
                    raised.append(error)
                    return 1
                return 0

            connection.set_progress_handler(go_on, STEPS_OF_VACUUM)
            try:
                connection.execute("VACUUM")
            except sqlite3.OperationalError:
                if raised:
                    raise raised[0] from None
                raise
            finally:
                connection.set_progress_handler(None, 0)

        self._with_engine(lambda engine: engine.alone(work))


def _whole(chain: int, members: list[Any], expiry: Expiry, batches: dict[int, int | None]) -> DoomedChain | None:
    """None, unless all have ended, and each may go if it had ended as late as the chain, or its batch."""
    if any(status not in ENDED or finished_at is None for _, status, _, _, finished_at, _, _ in members):
        return None
    end = max((finished_at, job) for job, _, _, _, finished_at, _, _ in members)
    for batch in {member[5] for member in members} & batches.keys():
        done_at = batches[batch]
        if done_at is None:
            return None
        end = max(end, (done_at, 0))
    if any(end > expiry.until(status, queue, task) for _, status, queue, task, *_ in members):
        return None
    rows = sum(rows_of(attempt) for *_, attempt in members)
    long = tuple(job for job, *_, attempt in members if attempt > LONG_HISTORY)
    return DoomedChain(chain, {job: status for job, status, *_ in members}, rows, end[0], long)


def _as_dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _as_json_value(text: Any) -> Any:
    """What is JSON goes as such; what is not, since somebody put it there by hand, as text."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError):
        return text
    return msgspec.Raw(text.encode() if isinstance(text, str) else text)
