"""Parse Slurm's host lists: `n[1-3,07],login` is n1, n2, n3, n07 and login."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_NAMES = 100_000
"""Maximum names in a list: more than any cluster has; bounds memory for a malformed list."""

_PART = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*")
_RANGE = re.compile(r"([^\[]*)\[([^\]]*)\](.*)", re.DOTALL)


def names_of(text: str) -> list[str]:
    """Return all names of a list in order. Raises ValueError if it is malformed."""
    found: list[str] = []
    for part in _parts(text):
        found += _spread(part)
        if len(found) > MAX_NAMES:
            raise ValueError(f"more than {MAX_NAMES} names")
    return found


def numbers_of(text: str) -> list[int]:
    """Return all numbers of a task list like `0-3,7%2`; the part after % is a limit."""
    return [int(name) for name in _each(text.partition("%")[0])]


def _parts(text: str) -> Iterator[str]:
    for found in _PART.finditer(text.strip()):
        if found[0] and found[0] != "(null)":
            yield found[0]


def _spread(part: str) -> list[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    rests = _spread(found[3])
    return [f"{found[1]}{number}{rest}" for number in _each(found[2]) for rest in rests]


def _each(ranges: str) -> Iterator[str]:
    """Yield the numbers of `1-3,07` with their zero padding; `0-8:4` has step 4."""
    for each in ranges.split(","):
        bounds, _, step = each.partition(":")
        first, _, last = bounds.partition("-")
        if not last:
            yield first
            continue
        if int(last) - int(first) > MAX_NAMES:
            raise ValueError(f"more than {MAX_NAMES} names")
        for number in range(int(first), int(last) + 1, int(step or 1)):
            yield str(number).zfill(len(first))
