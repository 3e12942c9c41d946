"""The OpenAPI 3.1 document, made from the declared types of the endpoints and from how `to_data` writes them."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from .. import __version__
from ..app.job import Stored
from ..text import SHAPES, Shape
from .api import Endpoint

Schema = dict[str, Any]
PRIMITIVES: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "number"},
    Any: {},
    object: {},
}


class Problem(Struct):
    """An error, after RFC 9457. `code` is the name of Holdfast's exception."""

    type: str
    title: str
    status: int
    detail: str
    code: str


def document(endpoints: Sequence[Endpoint], prefix: str) -> Schema:
    """Return the document. prefix: of all paths, such as /api/v1."""
    schemas = Schemas()
    paths: dict[str, Schema] = {}
    for one in endpoints:
        path = prefix + re.sub(r"\{(\w+)(:\w+)?\}", r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "summary": "Durable jobs and messages."},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(one: Endpoint, schemas: Schemas) -> Schema:
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": PRIMITIVES[int if kind == ":int" else str]}
        for name, kind in re.findall(r"\{(\w+)(:\w+)?\}", one.path)
    ]
    if one.query is not None:
        for field in msgspec.structs.fields(one.query):
            schema = schemas.of(field.type)
            parameters.append({"name": field.name, "in": "query", "required": field.required, "schema": schema})
    if one.idempotent_key:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": PRIMITIVES[str]})
    if one.has_etag:
        parameters.append({"name": "If-None-Match", "in": "header", "schema": PRIMITIVES[str]})
    if one.is_stream:
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": PRIMITIVES[str]})
    problem = {"description": "Error", "content": {"application/problem+json": {"schema": schemas.of(Problem)}}}
    responses: Schema = {
        str(one.status): {"description": "Done", "content": _json(schemas.of(one.result))},
        "default": problem,
    }
    if one.has_etag:
        responses["304"] = {"description": "Nothing has changed"}
    if one.is_stream:
        responses[str(one.status)]["content"]["text/event-stream"] = {"schema": PRIMITIVES[str]}
    found: Schema = {
        "operationId": one.run.__name__,
        "summary": one.summary,
        "description": f"Needs the role {one.role.name}.",
        "parameters": parameters,
        "responses": responses,
    }
    if one.body is not None:
        required = any(field.required for field in msgspec.structs.fields(one.body))
        found["requestBody"] = {"required": required, "content": _json(schemas.of(one.body))}
    return found


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


class Schemas:
    """Collects a component for each class."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type, as `to_data` writes its values."""
        if isinstance(kind, tuple):  # the fields of several classes together
            return {"allOf": [self.of(one) for one in kind]}
        if isinstance(kind, typing.TypeVar):
            return {}
        if (isinstance(kind, type) or kind is None or kind is Any) and kind in PRIMITIVES:
            return PRIMITIVES[kind]
        origin, members = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            options = [self.of(one) for one in members if one is not UnsetType]
            return options[0] if len(options) == 1 else {"anyOf": options}
        if origin is Literal:
            return {"enum": list(members)}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(members[1])}
        if isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, Struct):
            return {"type": "array", "items": self.of(members[0])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [one.value for one in kind]}
        if isinstance(origin if origin is not None else kind, type):
            return self._component(origin or kind, members)
        return {}

    def _component(self, kind: type, parameters: tuple[Any, ...]) -> Schema:
        name = kind.__name__ + "".join(f"Of{getattr(one, '__name__', one)}" for one in parameters)
        if name not in self.components:
            self.components[name] = {}  # a class may refer to itself
            variables = dict(zip(getattr(kind, "__parameters__", ()), parameters, strict=False))
            self.components[name] = self._object(kind, variables)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, kind: type, variables: Mapping[Any, Any]) -> Schema:
        shape = SHAPES.get(kind.__name__, Shape())
        names = [*(shape.fields or _field_names(kind)), *shape.extra]
        hints = _hints(kind, names)
        properties = {shape.rename.get(name, name): self.of(_filled(hints[name], variables)) for name in names}
        found: Schema = {"type": "object", "properties": properties}
        if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
            found["description"] = kind.__doc__.split("\n\n")[0].replace("\n    ", " ").strip()
        if required := [shape.rename.get(name, name) for name in _required(kind) if name in names]:
            found["required"] = required
        return found


def _field_names(kind: type) -> tuple[str, ...]:
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def _hints(kind: type, names: Collection[str]) -> dict[str, Any]:
    """Return the types of these fields and properties."""
    found = {name: getattr(kind, name, None) for name in names}
    read = {
        name: get_type_hints(one.fget).get("return", Any) for name, one in found.items() if isinstance(one, property)
    }
    read |= {name: one.kind for name, one in found.items() if isinstance(one, Stored)}
    return read if len(read) == len(names) else get_type_hints(kind) | read


def _required(kind: type) -> list[str]:
    """Return the fields that a request must have, and those that a response always has."""
    if not issubclass(kind, Struct):
        return []
    return [field.encode_name for field in msgspec.structs.fields(kind) if field.required]


def _filled(hint: Any, variables: Mapping[Any, Any]) -> Any:
    if hint in variables:
        return variables[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(variables.get(one, Any) for one in parameters)] if parameters else hint
