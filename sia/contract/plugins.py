"""Entry points of installed packages, by group: policies, commands, predictors."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


class PluginError(Exception):
    """A plugin cannot be imported or used. The message is one line with the fix."""


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted, without importing them.

    The result is cached, because each lookup reads a file of every installed package.
    """
    return {point.name: point for point in sorted(_installed().select(group=group))}


@cache
def load_plugin(group: str, name: str) -> Any:
    """Import and return the object of an entry point.

    Raises KeyError for a name that is not installed, PluginError if its import fails.
    """
    point = plugins(group)[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        package = "an unknown package" if point.dist is None else point.dist.name
        raise PluginError(
            f"{group}: {name} ({point.value}, of {package}) cannot be imported: {error}; "
            "reinstall or uninstall that package"
        ) from error


@cache
def _installed() -> Any:
    """Read all entry points, once: each reading opens a file of every installed package.

    They are SelectableGroups in Python 3.11 and EntryPoints later; both can `select`.
    """
    return entry_points()
