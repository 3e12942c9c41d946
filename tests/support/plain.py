"""Plain SQL that every driver takes."""


def filled(statement: str, *values: int | str | None) -> str:
    """Write the values into a statement where it has a `?`. Drivers do not agree on placeholders."""
    first, *others = statement.split("?")
    assert len(others) == len(values)
    return first + "".join(_literal(value) + rest for value, rest in zip(values, others, strict=True))


def _literal(value: int | str | None) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
