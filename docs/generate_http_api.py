"""Write the list of endpoints in docs/reference/http-api.md: `python docs/generate_http_api.py`.

The list is made from the endpoints in holdfast.web.api; what stands above the marker is written by hand.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from holdfast.web.api import ENDPOINTS, Endpoint
from holdfast.web.openapi import Schemas

PAGE = Path(__file__).parent / "reference" / "http-api.md"
MARKER = "<!-- Written by docs/generate_http_api.py from here on. -->\n"


def with_endpoints(page: str) -> str:
    """Return the page with the list of endpoints replaced."""
    written, _, _ = page.partition(MARKER)
    schemas = Schemas()
    lines = ["## Endpoints", "", "| request | takes | returns | role | what |", "|---|---|---|---|---|"]
    lines += [_row(one, schemas) for one in ENDPOINTS]
    lines += [
        "",
        "## Shapes",
        "",
        "Times are ISO 8601 in UTC, durations are seconds. `?` marks what may be left out.",
    ]
    taken = Schemas()
    for one in ENDPOINTS:
        taken.of(one.body)
    for name, schema in schemas.components.items():
        if "Of" not in name:
            lines += ["", f"### {name}", "", *_members(schema, name in taken.components)]
    return "\n".join([written + MARKER, *lines]) + "\n"


def _row(one: Endpoint, schemas: Schemas) -> str:
    path = re.sub(r":\w+", "", one.path)
    takes = []
    if one.query is not None:
        takes.append(", ".join(f"`{field.name}`" for field in msgspec.structs.fields(one.query)))
    if one.body is not None:
        takes.append(_linked(schemas.of(one.body)))
    if one.idempotent_key:
        takes.append("`Idempotency-Key`")
    returns = _linked(schemas.of(one.result))
    cells = (f"`{one.method} {path}`", "; ".join(takes), returns, one.role.name, f"{one.summary}.")
    return f"| {' | '.join(cells)} |"


def _linked(schema: dict[str, Any]) -> str:
    if "allOf" in schema:
        return " and ".join(map(_linked, schema["allOf"]))
    name = schema["$ref"].rpartition("/")[2]
    kind, _, item = name.partition("Of")
    item = item.partition("Of")[0]
    return f"page of [{item}](#{item.lower()})" if item and kind == "Items" else f"[{kind}](#{kind.lower()})"


def _members(schema: dict[str, Any], is_taken: bool) -> list[str]:
    """is_taken: it is in the body of a request, and what is not required may be left out."""
    required = schema.get("required", [])
    rows = [
        f"| `{name}{'?' if name not in required and (required or is_taken) else ''}` | {_type(one)} |"
        for name, one in schema["properties"].items()
    ]
    return [
        *([schema["description"], ""] if "description" in schema else []),
        "| member | type |",
        "|---|---|",
        *rows,
    ]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return _linked(schema)
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}"
    if schema.get("type") == "object":
        return f"object of {_type(schema['additionalProperties'])}"
    return {"date-time": "time"}.get(schema.get("format", ""), schema.get("type", "any JSON value"))


if __name__ == "__main__":
    PAGE.write_text(with_endpoints(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
