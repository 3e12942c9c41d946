"""Deleting what is old: a run, in steps that are short enough to let others have the database in between."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from heapq import merge

from ..clock import Clock
from ..retention import ENDED, LAST_ID, NOTHING, Expiry, Mark, Retention, decider, expiry, of_any
from ..store.base import Store
from ..store.pruned import LONG_HISTORY, DoomedChain, Ended, Pruned
from .archive import Archive
from .forecast import Forecast
from .pace import LOCK_SECONDS, Pace
from .sweep import Sweep

CHUNK_ROWS = 2000
MOST_ROWS = 5000
LEAST_ROWS = 50
LEAST_JOBS = 10
FIRST_ROWS = 500
LONG_CHAIN = 1000
MOST_CHAINS = 500
SOME_BLOBS = 100
END: Mark = (LAST_ID, LAST_ID)
"""Of the line of those that have ended; a clock that was wrong may have put some ahead of now."""

Steps = Generator[float, None, None]
"""Each next() is one step; what it gives are the seconds for which that kept others from writing."""


class TakenOver(Exception):
    """Another run has taken over, or is at it."""


class Run:
    """From the oldest on. `begin` gives the token with which to delete, and `archive` the file to write to before
    that: both are called when there is something to delete."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        retention: Retention,
        begin: Callable[[], str | None],
        *,
        archive: Callable[[], Archive] | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        """forecast: nothing is deleted, and this is told what would be."""
        self._store, self._clock, self._retention = store, clock, retention
        self._begin, self._archive, self._forecast = begin, archive, forecast
        self._token: str | None = None
        self._pace = Pace(FIRST_ROWS if forecast is None else MOST_ROWS, LEAST_ROWS, MOST_ROWS)
        self._judged: set[int] = set()
        self._is_by_size = False
        # Of a forecast: jobs that others wait for, or that are of chains; and what may go by age and number.
        self._gone: set[int] = set()
        self._old = of_any(NOTHING)
        self.reached: dict[str, Mark] = {}
        self.counts: Counter[str] = Counter()
        self.archived = 0

    @property
    def token(self) -> str | None:
        return self._token

    def steps(self, after: dict[str, Mark] | None = None) -> Steps:
        """after: where to begin, by status, if all before was looked at not long ago; then only jobs are."""
        self._judged.clear()
        self._is_by_size = False
        until = self._old = yield from self._until()
        for status in ENDED:
            begin = (after or {}).get(status, NOTHING)
            yield from self._scan([status], begin, until.latest(status), until)
        self._is_by_size = True
        yield from self._by_size()
        if self._forecast is not None:
            self.counts.update(self._forecast.others(self._clock.now()))
            return
        yield from self._blobs()
        if after is None:
            yield from Sweep(self._store, self._retention, self._clock.now(), self._count_others).steps()

    def ease(self) -> bool:
        """Do less at a time from now on. False: it is as little as it can be."""
        return self._pace.halve()

    # --- by age and number ---

    def _until(self) -> Generator[float, None, Expiry]:
        """What may go. Where only so many are kept, it walks along the line, past those that are too many."""
        now = self._clock.now()
        marks: dict[tuple[str, int], Mark] = {}
        if self._retention.counts_matter():
            for status, surplus in self._surplus().items():
                limits = list(self._retention.limits(status))
                after = NOTHING
                while surplus and (rows := self._store.ended_after(status, after, END, CHUNK_ROWS)):
                    for row in rows:
                        place = decider(limits, row.queue, row.task)
                        if place in surplus:
                            marks[status, place] = row.mark
                            surplus[place] -= 1
                            if not surplus[place]:
                                del surplus[place]
                    after = rows[-1].mark
                    yield 0.0
        return expiry(self._retention, now, marks)

    def _surplus(self) -> dict[str, dict[int, int]]:
        """By status and the place of a limit: how many are more than it allows."""
        found: dict[str, Counter[int]] = {status: Counter() for status in ENDED}
        limits = {status: list(self._retention.limits(status)) for status in ENDED}
        for count in self._store.counts():
            if count.status in limits:
                place = decider(limits[count.status], count.queue, count.task)
                found[count.status][place] += count.count
        return {
            status: {
                place: n - newest
                for place, n in counts.items()
                if (newest := limits[status][place].newest) is not None and n > newest
            }
            for status, counts in found.items()
        }

    def _scan(self, statuses: Sequence[str], after: Mark, last: Mark, until: Expiry) -> Steps:
        while rows := self._next(statuses, after, last):
            after = rows[-1][1].mark
            yield from self._take(rows, until)
            for status in statuses:
                self.reached[status] = after
            yield 0.0

    def _next(self, statuses: Sequence[str], after: Mark, last: Mark) -> list[tuple[str, Ended]]:
        lines = [
            [(status, row) for row in self._store.ended_after(status, after, last, CHUNK_ROWS)] for status in statuses
        ]
        return list(merge(*lines, key=lambda line: line[1].mark))[:CHUNK_ROWS]

    def _take(self, rows: list[tuple[str, Ended]], until: Expiry) -> Steps:
        """Of these, what may go."""
        chains: list[int] = []
        alone: dict[str, list[Ended]] = {}
        for status, row in rows:
            if row.linked:
                if row.chain not in self._judged:
                    self._judged.add(row.chain)
                    chains.append(row.chain)
            elif row.mark <= until.until(status, row.queue, row.task) and not self._is_foretold(status, row):
                alone.setdefault(status, []).append(row)
        freed: list[int] = []
        for status, jobs in alone.items():
            freed += yield from self._delete_alone(status, jobs)
        yield from self._delete_chains([*chains, *freed], until)

    def _is_foretold(self, status: str, row: Ended) -> bool:
        """It would be gone by now, by its age or number."""
        is_later = self._forecast is not None and self._is_by_size
        return is_later and row.mark <= self._old.until(status, row.queue, row.task)

    # --- by size ---

    def _by_size(self) -> Steps:
        most, after = self._retention.max_bytes, NOTHING
        self._judged.clear()
        while most is not None and (size := self._size()) > most and (rows := self._next(ENDED, after, END)):
            # What they free is known only when they are gone: so half of what it may take, and then look again.
            share = (size - most) / size / 2
            rows = rows[: max(LEAST_JOBS, min(self._pace.amount // rows[0][1].rows, round(self._ended() * share)))]
            after = rows[-1][1].mark
            yield from self._take(rows, of_any(after))
            yield 0.0

    def _ended(self) -> int:
        foretold = 0 if self._forecast is None else sum(self.counts[status] for status in ENDED)
        return sum(count.count for count in self._store.counts() if count.status in ENDED) - foretold

    def _size(self) -> int:
        """Of a forecast, about."""
        return self._store.pages().used_bytes - (0 if self._forecast is None else self._forecast.freed_bytes)

    def _blobs(self) -> Steps:
        """What the payloads and results of those that are gone were kept in."""
        while gone := self._store.collect_blobs(SOME_BLOBS):
            self.counts["blobs"] += gone
            yield LOCK_SECONDS

    # --- deleting ---

    def _delete_alone(self, status: str, jobs: list[Ended]) -> Generator[float, None, list[int]]:
        freed: set[int] = set()
        waiting = deque(jobs)
        while waiting:
            piece = [waiting.popleft()]
            rows = piece[0].rows
            while waiting and rows + waiting[0].rows <= self._pace.amount:
                piece.append(waiting.popleft())
                rows += piece[-1].rows
            if self._forecast is not None:
                self._foretell(self._forecast, [job.id for job in piece], freed)
                yield 0.0
                continue
            self._write_down([job.id for job in piece])
            if piece[0].attempt > LONG_HISTORY:
                yield from self._trim(piece[0].id, status, piece[0].finished_at)
            done = self._count(self._store.prune_alone(self._require_token(), status, piece, self.counts))
            freed.update(done.freed)
            yield done.seconds
        return sorted(freed)

    def _trim(self, job: int, status: str, until: int) -> Steps:
        """One with a long history, which ended by then: that goes first, a little at a time."""
        rows = self._pace.amount
        while rows:
            token = self._require_token()
            done = self._count(self._store.prune_history(token, job, status, until, self._pace.amount, self.counts))
            rows = done.rows
            yield done.seconds

    def _delete_chains(self, chains: Sequence[int], until: Expiry) -> Steps:
        """And those that they waited for, if nobody else did; and so on."""
        todo = deque(chains)
        while todo:
            some = [todo.popleft() for _ in range(min(len(todo), MOST_CHAINS))]
            doomed = deque(self._store.doomed_chains(some, until, self._gone))
            while doomed:
                piece = [doomed.popleft()]
                while doomed and sum(one.rows for one in [*piece, doomed[0]]) <= self._pace.amount:
                    piece.append(doomed.popleft())
                todo += yield from self._delete_together(piece, until)
            yield 0.0

    def _delete_together(self, piece: list[DoomedChain], until: Expiry) -> Generator[float, None, list[int]]:
        ids = [job for one in piece for job in one.jobs]
        if self._forecast is not None:
            freed: set[int] = set()
            self._foretell(self._forecast, [job for job in ids if job not in self._gone], freed)
            self._gone.update(ids)
            yield 0.0
            return sorted(freed - {one.chain for one in piece})
        self._write_down(ids)
        found: list[int] = []
        for one in piece:
            for job in one.long:
                yield from self._trim(job, one.jobs[job], one.ended_at)
        if len(piece) == 1 and (len(ids) > LONG_CHAIN or piece[0].rows > MOST_ROWS):
            found = yield from self._delete_long(piece[0])
            return found
        done = self._count(self._store.prune_chains(self._require_token(), piece, until, self.counts))
        yield done.seconds
        return list(done.freed)

    def _delete_long(self, one: DoomedChain) -> Generator[float, None, list[int]]:
        freed: set[int] = set()
        while True:
            limit = max(1, self._pace.amount * len(one.jobs) // one.rows)
            done = self._count(self._store.prune_end_of_chain(self._require_token(), one, limit, self.counts))
            freed.update(done.freed)
            yield done.seconds
            if not done.rows:
                return sorted(freed)

    def _write_down(self, ids: list[int]) -> None:
        if self._archive is not None:
            self._require_token()
            self.archived += self._archive().append(self._store.whole_jobs(ids))

    def _foretell(self, forecast: Forecast, ids: list[int], freed: set[int]) -> None:
        """freed: gets the chains that they waited for."""
        self.counts.update(forecast.add(ids, self._is_by_size))
        edges = self._store.edges_of(ids)
        self._gone.update(edges)
        freed.update(chain for chains in edges.values() for chain in chains)

    def _count_others(self, do: Callable[[str, Counter[str]], Pruned | None]) -> Pruned:
        return self._count(do(self._require_token(), self.counts))

    def _count(self, done: Pruned | None) -> Pruned:
        if done is None:
            self._token = None
            raise TakenOver
        self.counts.update({name: n for name, n in done.counts.items() if n})
        self._pace.learn(done.rows, done.seconds)
        return done

    def _require_token(self) -> str:
        if self._token is None:
            self._token = self._begin()
        if self._token is None:
            raise TakenOver
        return self._token

    def end(self, interrupted: bool) -> None:
        token, self._token = self._token, None
        if token is not None:
            self._store.end_upkeep(token, interrupted)
