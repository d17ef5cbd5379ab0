"""What is large as JSON, piece by piece: in a thread, others have their turn between two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct, json

AT_ONCE = 500
"""Entries of a piece: about a millisecond, in which no other thread does anything."""

HEAVY = {"accounts": 20}
"""The same of a field whose entries have all of a pool's jobs in them."""


def pieces_of(value: Struct, *parts: type[Struct]) -> Iterator[bytes]:
    """The bytes of `json.encode`, for a struct that leaves no defaults out.

    So are `parts`: the types of those of its fields that are large in the same way.
    """
    before = b"{"
    for name in value.__struct_fields__:
        yield before + json.encode(name) + b":"
        field = getattr(value, name)
        if isinstance(field, parts):
            yield from pieces_of(field, *parts)
        elif isinstance(field, Mapping):
            yield from _pieces(field.items(), dict, b"{}", HEAVY.get(name, AT_ONCE))
        elif isinstance(field, tuple):
            yield from _pieces(field, tuple, b"[]", AT_ONCE)
        else:
            yield json.encode(field)
        before = b","
    yield b"}"


def _pieces(entries: Iterable[Any], kind: type, brackets: bytes, at_once: int) -> Iterator[bytes]:
    left, before = iter(entries), brackets[:1]
    while some := kind(islice(left, at_once)):
        yield before + json.encode(some)[1:-1]
        before = b","
    yield brackets if before != b"," else brackets[1:]
