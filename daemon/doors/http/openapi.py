"""Generate the OpenAPI 3.1 document from the operations and the wire structs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from http import HTTPStatus
from types import UnionType
from typing import Any, get_args

import msgspec
from msgspec import Struct

from daemon.doors.http.event_stream import SSE
from daemon.doors.http.operations import JSON, Operation, Parameter
from daemon.model.access import Rule
from daemon.wire.jobs import ProblemDetails, ReasonRequest
from daemon.wire.problems import PROBLEM_JSON
from daemon.wire.webhooks import Again
from sia import __version__

ALWAYS = (400, 401, 403, 429, 500, 503)
"""Problem statuses of every operation that requires a token."""

OPTIONAL = (ReasonRequest, Again)
"""Bodies that a client may omit."""

OpenApiDocument = dict[str, Any]


def document(operations: Iterable[Operation]) -> OpenApiDocument:
    """Return the OpenAPI document of these operations."""
    made = [*operations]
    kinds = {kind for operation in made for kind in _structs(operation)} | {ProblemDetails}
    paths: dict[str, OpenApiDocument] = {}
    for operation in made:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SIA",
            "version": __version__,
            "description": "Scheduler for pools of GPUs that lend idle GPUs to each other.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(frozenset(kinds)),
            "securitySchemes": {"token": TOKEN},
        },
    }


TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "Token of a viewer, submitter, admin or operator. Each role has the rules of "
    "the roles before it (x-sia-rule: view, submit, admin, operate).",
}

REF = "#/components/schemas/{name}"


@cache
def _schemas(kinds: frozenset[type[Struct]]) -> OpenApiDocument:
    """Return the JSON schemas of wire structs.

    They are cached: generating them takes a fifth of a second, and a standby may become leader more
    than once.
    """
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=REF)
    for schema in schemas.values():  # drop references to sections of the design
        schema["description"] = re.sub(r" \(§[^)]*\)", "", schema["description"])
    return schemas


def _structs(operation: Operation) -> Iterator[type[Struct]]:
    for kind in (operation.body, *operation.answers.values()):
        for part in get_args(kind) if isinstance(kind, UnionType) else (kind,):
            if isinstance(part, type) and issubclass(part, Struct):
                yield part


def _operation(operation: Operation) -> OpenApiDocument:
    words = re.findall(r"[a-z]+", f"{operation.method.lower()} {operation.path}")
    described: OpenApiDocument = {
        "operationId": "_".join(words),
        "summary": operation.about,
        "x-sia-rule": operation.rule.value,
        "responses": dict(_responses(operation)),
    }
    if operation.parameters:
        described["parameters"] = [*map(_parameter, operation.parameters)]
    if operation.body is not None:
        content = {JSON: {"schema": _schema(operation.body)}}
        described["requestBody"] = {"content": content, "required": operation.body not in OPTIONAL}
    if operation.rule is Rule.OPEN:
        described["security"] = []
    return described


def _responses(operation: Operation) -> Iterator[tuple[str, OpenApiDocument]]:
    for status, kind in operation.answers.items():
        described: OpenApiDocument = {"description": HTTPStatus(status).phrase}
        if isinstance(kind, str):
            described["content"] = {kind: {"schema": {"type": "string"}}}
        elif kind is not None:
            described["content"] = {JSON: {"schema": _schema(kind)}}
            if operation.stream:
                described["content"][SSE] = {"schema": {"type": "string"}}
        yield str(status), described
    always = () if operation.rule is Rule.OPEN else ALWAYS
    sent = () if operation.body is None else (408, 415)
    for status in sorted({*always, *sent, *operation.refusals}):
        if status not in operation.answers:
            content = {PROBLEM_JSON: {"schema": _schema(ProblemDetails)}}
            yield str(status), {"description": HTTPStatus(status).phrase, "content": content}


def _schema(kind: Any) -> OpenApiDocument:
    if isinstance(kind, UnionType):
        return {"anyOf": [_schema(part) for part in get_args(kind)]}
    if kind is dict:
        return {"type": "object"}
    return {"$ref": REF.format(name=kind.__name__)}


def _parameter(parameter: Parameter) -> OpenApiDocument:
    (schema,), _ = msgspec.json.schema_components([parameter.kind], ref_template=REF)
    if "$ref" in schema:
        schema = {"type": "string", "enum": [str(member.value) for member in parameter.kind]}
    if parameter.default is not None:
        schema = {**schema, "default": parameter.default}
    return {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.about,
        "required": parameter.where == "path",
        "schema": schema,
    }
