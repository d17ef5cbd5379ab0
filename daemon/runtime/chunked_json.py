"""What is large as JSON, piece by piece: in a thread, others have their turn between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

from msgspec import UNSET, Struct, json

AT_ONCE = 500
"""Entries of a piece: about a millisecond, in which no other thread does anything."""


def json_chunks(value: Struct, *parts: type[Struct]) -> Iterator[bytes]:
    """The bytes of `json.encode`, for a struct that leaves no defaults out.

    So are `parts`: the types of those of its fields that are large in the same way, and of
    entries of its fields, which have a `weight`.
    """
    before = b"{"
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if field is UNSET:
            continue
        yield before + json.encode(name) + b":"
        if isinstance(field, parts):
            yield from json_chunks(field, *parts)
        elif isinstance(field, Mapping) and isinstance(next(iter(field.values()), None), parts):
            yield from _heavy(cast("Mapping[str, Any]", field), parts)
        elif isinstance(field, Mapping):
            yield from _pieces(field.items(), dict, b"{}")
        elif isinstance(field, tuple | list):
            yield from _pieces(field, type(field), b"[]")
        else:
            yield json.encode(field)
        before = b","
    yield b"}"


def _heavy(entries: Mapping[str, Any], parts: tuple[type[Struct], ...]) -> Iterator[bytes]:
    """Small entries together, large ones in pieces."""
    some: dict[str, Any] = {}
    weight, before = 0, b"{"
    for name, entry in entries.items():
        if some and weight + entry.weight > AT_ONCE:
            yield before + json.encode(some)[1:-1]
            some, weight, before = {}, 0, b","
        if entry.weight > AT_ONCE:
            yield before + json.encode(name) + b":"
            yield from json_chunks(entry, *parts)
            before = b","
        else:
            some[name] = entry
            weight += entry.weight
    if some:
        yield before + json.encode(some)[1:-1]
    yield b"}"


def _pieces(entries: Iterable[Any], kind: type, brackets: bytes) -> Iterator[bytes]:
    left, before = iter(entries), brackets[:1]
    while some := kind(islice(left, AT_ONCE)):
        yield before + json.encode(some)[1:-1]
        before = b","
    yield brackets if before != b"," else brackets[1:]
