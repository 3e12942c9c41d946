"""The SQL of PostgreSQL in statements that are put together from filters and columns."""

from typing import Any, Literal

import psycopg

from ..statements import as_json


class PostgresDialect:
    """Implements Dialect."""

    def __init__(self, tables: str) -> None:
        self._tables = tables

    def listed(self, name: str, kind: Literal["text", "integer"]) -> str:
        return f"SELECT value FROM {self._tables}each_{'id' if kind == 'integer' else 'text'}(:{name})"  # noqa: S608

    def element(self, row: str, index: int) -> str:
        return f"({row} ->> {index})"

    def same_task(self, value: str) -> str:
        return f"coalesce(task, '') = coalesce({value}, '')"  # as the indexes have it

    def like(self, value: str, name: str) -> str:
        return f"coalesce({value} LIKE :{name}, false)"

    def pattern(self, text: str) -> str:
        for special in ("\\", "%", "_"):
            text = text.replace(special, f"\\{special}")
        return text.replace("*", "%")

    def argument(self, name: str) -> str:
        return f"{self._tables}argument(args, :{name})"

    def path(self, names: list[str]) -> str:
        return as_json(names)

    def using(self, table: str, index: str) -> str:
        del index
        return table

    def encoded(self, column: str) -> str:
        return f"convert_to({column}, 'UTF8')"

    def with_rows(self, statement: str, rows: list[tuple[Any, ...]]) -> tuple[str, list[Any]]:
        return statement, [as_json(rows)]

    def inserted_id(self, cursor: Any) -> int:
        return int(cursor.fetchone()[0])

    def is_constraint_error(self, error: Exception) -> bool:
        return isinstance(error, psycopg.IntegrityError)
