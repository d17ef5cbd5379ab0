"""Encode large values as JSON in chunks, so that other threads run between two chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

from msgspec import UNSET, Struct, json

AT_ONCE = 500
"""Entries in a chunk: about 1 ms, during which the encoder holds the interpreter lock."""

SCALARS = (str, int, float, type(None))
BUILT_IN = (dict, tuple, list)
"""Most fields are of one of these types; to find out whether one is a `Mapping` takes longer."""


def json_chunks(value: Struct, *parts: type[Struct]) -> Iterator[bytes]:
    """Yield the bytes of `json.encode(value)` in chunks; `value` must not omit defaults.

    `parts` are the struct types of large fields, and of large entries of mapping fields; such
    entries have a `weight`. They must not omit defaults either.
    """
    before = b"{"
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if field is UNSET:
            continue
        yield before + json.encode(name) + b":"
        if isinstance(field, SCALARS):
            yield json.encode(field)
        elif isinstance(field, parts):
            yield from json_chunks(field, *parts)
        elif isinstance(field, Mapping) and isinstance(next(iter(field.values()), None), parts):
            yield from _heavy(cast("Mapping[str, Any]", field), parts)
        elif isinstance(field, BUILT_IN) and len(field) <= AT_ONCE:
            yield json.encode(field)
        elif isinstance(field, Mapping):
            yield from _pieces(field.items(), dict, b"{}")
        elif isinstance(field, tuple | list):
            yield from _pieces(field, type(field), b"[]")
        else:
            yield json.encode(field)
        before = b","
    yield b"}"


def _heavy(entries: Mapping[str, Any], parts: tuple[type[Struct], ...]) -> Iterator[bytes]:
    """Yield small entries together and large ones in chunks."""
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
