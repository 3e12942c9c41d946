"""A few hundred jobs of all kinds, by plain SQL, and filters at random: what fits is known without any index."""

import json
import sqlite3
from contextlib import closing
from random import Random
from typing import Any

from holdfast.model.job import STATUSES, TERMINAL, Criteria

QUEUES = ["a", "b", "c", "ü"]
TASKS = [None, "resize", "send", "rare"]
CODES = ["DEPENDENCY:SMTP", "TIMEOUT:RUN"]
TAGS = ["red", "green"]
KEYS = ["k", "l"]
STATES = sorted(STATUSES)
START = 1_700_000_000_000_000

Row = dict[str, Any]


def fill(path: str, random: Random, count: int = 300) -> None:
    """Most are of one state; ids have gaps; the clock goes back at times; some were changed by hand."""
    usual = random.choice(STATES)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for number in range(count):
            status = usual if random.random() < 0.5 else random.choice(STATES)
            created = START + (number - random.choice([0, 0, 0, 40])) * 1_000_000
            ended = status in TERMINAL and random.random() < 0.95
            task = random.choice(TASKS)
            job = {
                "id": 1 + 3 * number + random.randrange(3),
                "queue": random.choice(QUEUES),
                "task": task,
                "status": status,
                "priority": random.choice([0, 0, 5, -3]),
                "created_at": created,
                "run_at": created,
                "finished_at": created + random.randrange(100_000_000) if ended else None,
                "error_code": random.choice([*CODES, None]) if status in ("failed", "ready", "scheduled") else None,
                "key": random.choice(KEYS) if status in TERMINAL and random.random() < 0.2 else None,
                "tags": json.dumps(random.sample(TAGS, random.randrange(1, 3))) if random.random() < 0.2 else None,
                "lease": 10**15 if status == "running" else None,
                "history": int(random.random() < 0.9),
                "max_attempts": 3,
            }
            names, values = ", ".join(job), ", ".join(f":{name}" for name in job)
            connection.execute(f"INSERT INTO holdfast_jobs ({names}) VALUES ({values})", job)  # noqa: S608
        _link(connection, random)
        connection.execute("COMMIT")


def _link(connection: sqlite3.Connection, random: Random) -> None:
    """Some chains of more than one job, and some that another job waits for."""
    ids = [row[0] for row in connection.execute("SELECT id FROM holdfast_jobs WHERE task IS NOT NULL ORDER BY id")]
    for root in random.sample(ids[: len(ids) // 2], 15):
        linked = _linked(connection)
        if root in linked:
            continue
        parts = sorted(random.sample([id for id in ids if id > root and id not in linked], random.choice([1, 1, 2])))
        connection.execute("UPDATE holdfast_jobs SET continued = 1, chain_ended_at = 1 WHERE id = ?", (root,))
        for index, part in enumerate(parts, 1):
            connection.execute(
                "UPDATE holdfast_jobs SET chain_id = ?, chain_index = ?, continued = ? WHERE id = ?",
                (root, index, int(part != parts[-1]), part),
            )
    for root in random.sample([id for id in ids if id not in _linked(connection) or id in _roots(connection)], 15):
        waiting = random.choice(ids)
        connection.execute("UPDATE holdfast_jobs SET awaited = 1 WHERE id = ?", (root,))
        row = (waiting, root, root)
        connection.execute("INSERT INTO holdfast_blockers (job_id, position, chain_id) VALUES (?, ?, ?)", row)


def _linked(connection: sqlite3.Connection) -> set[int]:
    rows = connection.execute("SELECT id FROM holdfast_jobs WHERE continued OR chain_id IS NOT NULL")
    return {row[0] for row in rows}


def _roots(connection: sqlite3.Connection) -> set[int]:
    return {row[0] for row in connection.execute("SELECT id FROM holdfast_jobs WHERE continued AND chain_id IS NULL")}


def read(path: str) -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM holdfast_jobs ORDER BY id DESC")]


def some_criteria(random: Random, rows: list[Row]) -> Criteria:
    """Each filter may be there or not."""

    def some(values: list[Any], share: float) -> tuple[Any, ...]:
        return tuple(random.sample(values, random.randint(1, min(3, len(values))))) if random.random() < share else ()

    def moment(share: float) -> int | None:
        return START + random.randrange(-50, 500) * 1_000_000 if random.random() < share else None

    kind = random.random()
    messages = random.choice([True, False]) if random.random() < 0.15 else None
    tasks = [task for task in TASKS if task is not None]
    found = {
        "status": some(STATES, 0.5),
        "queue": some([*QUEUES, "unknown"], 0.35),
        "task": some([*tasks, "unknown"], 0.3),
        "key": some([*KEYS, "unknown"], 0.1),
        "error_code": some([*CODES, "UNKNOWN"], 0.15),
        "tag": some([*TAGS, "unknown"], 0.15),
        "created_from": moment(0.15),
        "created_before": moment(0.15),
        "finished_from": moment(0.1),
        "finished_before": moment(0.1),
        "messages": messages,
    }
    if kind < 0.1:
        found["ids"] = tuple(random.sample([row["id"] for row in rows], 40))
    elif kind < 0.3:
        found |= {"roots": True, "status": (), "chain_status": found["status"], "messages": False}
    return Criteria(**found)


def fitting(rows: list[Row], criteria: Criteria) -> list[int]:
    last: dict[int, Row] = {}
    for row in rows:
        chain = row["chain_id"] or row["id"]
        if chain not in last or row["chain_index"] > last[chain]["chain_index"]:
            last[chain] = row
    return [row["id"] for row in rows if _fits(row, criteria, last)]


def _fits(row: Row, criteria: Criteria, last: dict[int, Row]) -> bool:
    def within(value: int | None, start: int | None, end: int | None) -> bool:
        if start is None and end is None:
            return True
        return value is not None and (start is None or value >= start) and (end is None or value < end)

    tags = set(json.loads(row["tags"])) if row["tags"] else set()
    chain = last.get(row["id"], row) if row["continued"] else row
    return (
        (criteria.ids is None or row["id"] in criteria.ids)
        and all(
            not getattr(criteria, name) or row[name] in getattr(criteria, name)
            for name in ("status", "queue", "task", "key", "error_code")
        )
        and (not criteria.tag or bool(tags & set(criteria.tag)))
        and within(row["created_at"], criteria.created_from, criteria.created_before)
        and within(row["finished_at"], criteria.finished_from, criteria.finished_before)
        and criteria.messages in (None, row["task"] is None)
        and (not criteria.roots or row["chain_id"] is None)
        and (not criteria.chain_status or chain["status"] in criteria.chain_status)
    )


def deletable(rows: list[Row], edges: list[tuple[int, int]], criteria: Criteria) -> int:
    """edges: a job, and the chain that it waits for."""
    by_id = {row["id"]: row for row in rows}
    fit = {id for id in fitting(rows, criteria) if by_id[id]["status"] != "running"}
    awaited = {chain for job, chain in edges if by_id[job]["status"] not in TERMINAL}
    chains: dict[int, set[int]] = {}
    for row in rows:
        chains.setdefault(row["chain_id"] or row["id"], set()).add(row["id"])
    return sum(len(jobs) for chain, jobs in chains.items() if jobs <= fit and chain not in awaited)
