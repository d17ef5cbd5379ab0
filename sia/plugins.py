"""What is installed under an entry point group: policies, commands."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, sorted; nothing is imported yet.

    Looked up once: each look reads a file of every installed package.
    """
    return {point.name: point for point in sorted(entry_points(group=group))}
