"""A description of routes for machines, made from the types of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import Any, NamedTuple

import msgspec

from fclub import __version__
from fclub.service.http.keys import NEEDS


class Refused(msgspec.Struct, frozen=True):
    error: str


class Operation(NamedTuple):
    """What a method on a path answers, in words, and what it takes: a body, parameters of a query."""

    answer: Any
    text: str
    body: Any = None
    query: tuple[str, ...] = ()


QUERY: Mapping[str, Any] = {
    "after": {"type": "string"},
    "category": {"type": "string", "minLength": 1},
    "count": {"type": "integer", "minimum": 1},
}
"""Parameters of queries."""

Operations = Mapping[tuple[str, str], Operation]
"""By method, in small letters, and path."""


def describe(
    title: str,
    operations: Operations,
    refusals: Mapping[str, tuple[int, ...]],
    more: Sequence[Any] = (),
) -> dict[str, Any]:
    """OpenAPI of a server; `refusals` are statuses by method, `more` are further types."""
    types = [t for one in operations.values() for t in (one.answer, one.body) if t is not None]
    types += [*more, Refused]
    schemas, components = msgspec.json.schema_components(
        types, ref_template=reference("{name}")["$ref"]
    )
    for schema in (*schemas, *components.values()):
        _without_tuples(schema)
    for schema in components.values():
        if "description" in schema:  # a docstring, whose indentation would make it code in Markdown
            schema["description"] = cleandoc(schema["description"])
    of = dict(zip(map(repr, types), schemas, strict=True))
    refused = {"description": "Refused.", "content": as_json(of[repr(Refused)])}
    paths: dict[str, Any] = {}
    for (method, path), one in operations.items():
        responses = {"200": {"description": "Done.", "content": as_json(of[repr(one.answer)])}}
        responses |= {str(code): refused for code in refusals[method]}
        operation = {
            "operationId": _name(method, path),
            "summary": one.text,
            "security": [{"key": [NEEDS[method.upper(), path]]}],
            "responses": responses,
        } | _parameters(path, one.query)
        if one.body is not None:
            operation["requestBody"] = {"required": True, "content": as_json(of[repr(one.body)])}
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "paths": paths,
    }


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def as_json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _name(method: str, path: str) -> str:
    """What generated clients call an operation: `post_recommend`, `get_items_item_similar`."""
    return "_".join([method, *re.findall(r"\w+", path.removeprefix("/v1"))])


def _without_tuples(schema: Any) -> None:
    """Tuples of n equal parts as lists of n: many generators do not know `items: false`."""
    if isinstance(schema, dict):
        parts = schema.pop("prefixItems", None)
        if parts is not None:
            schema["items"] = parts[0]
        for inside in schema.values():
            _without_tuples(inside)
    elif isinstance(schema, list):
        for inside in schema:
            _without_tuples(inside)


def _parameters(path: str, query: tuple[str, ...]) -> dict[str, Any]:
    """The names in braces, which are never empty, and those of the query."""
    schema = {"type": "string", "minLength": 1}
    names = re.findall(r"{(\w+)}", path)
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": schema} for name in names
    ]
    found += [{"name": name, "in": "query", "schema": QUERY[name]} for name in query]
    return {"parameters": found} if found else {}
