"""Values from outside as structs, with all that is wrong with them said at once.

`msgspec` stops at the first wrong value, which is quick; where something is wrong it is looked at
again here, key by key.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

MAX_SHOWN = 40
"""Characters of a wrong value that are said: enough to find it by."""

MAX_UNKNOWN = 20
"""Unknown keys of one object that are named: finding the key that was meant takes 0.2 ms each."""

SECRET = frozenset(("env", "password", "secret", "token"))
"""Keys whose values are not said even to whoever sent them: messages end up in logs."""

PATTERNS = {
    "'^[A-Za-z0-9_]": "letters, digits, dots, dashes and underscores, first no dot and no dash",
    "'^[A-Za-z0-9][": "letters, digits, dots and dashes, 63 at most, first a letter or a digit",
    "'^20[0-9]": "a month, as 2026-11",
    "'^[^=": "characters other than = and NUL, one at least",
    r"'^[^\\u0000]": "text without NUL",
    "'": "text without control characters",
}
"""Patterns by how they begin, as what to write."""

SPAN = re.compile(r"[0-9.]+ *(ms|s|min|m|h|d|w)")
"""A time with its unit, where a number is wanted."""

BOUND = re.compile(r"float ([<>]=?) ([-0-9.e+]+)")
"""A number that is out of its bounds, as `msgspec` says it."""

T = TypeVar("T", bound=Struct)

Path = tuple[str | int, ...]
"""Keys and numbers that lead to a value."""


class ConfigProblem(NamedTuple):
    """One wrong value: where it is, what is wrong, and the mend."""

    path: Path
    what: str
    mend: str

    def __str__(self) -> str:
        """As one line."""
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"{where.removeprefix('.')}: {self.what}; {self.mend}"


def read(values: Any, kind: type[T], path: Path, problems: list[ConfigProblem]) -> T | None:
    """Values by key as a struct, with defaults for what is wrong, which is added to the problems.

    None where a key is wrong that has no default.
    """
    if not isinstance(values, dict):
        problems.append(ConfigProblem(path, f"is {shown(values)}", "write keys and their values"))
        return None
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    refuse_unknown(values, fields, path, problems)
    good = {}
    for name, field in fields.items():
        if name in values:
            try:
                good[field.name] = msgspec.convert(values[name], field.type)
            except msgspec.ValidationError as error:
                what, mend = explained(values[name], str(error), field.type)
                if name in SECRET:
                    what = "is not as it should be"
                problems.append(ConfigProblem((*path, name), what, mend))
        elif field.required:
            problems.append(ConfigProblem((*path, name), "is missing", "add it"))
    whole = all(field.name in good for field in fields.values() if field.required)
    return kind(**good) if whole else None


def refuse_unknown(
    values: Mapping[str, Any], known: Collection[str], path: Path, problems: list[ConfigProblem]
) -> None:
    """Name each key that is not known, and the one that was likely meant."""
    for key in islice((key for key in values if key not in known), MAX_UNKNOWN):
        near = difflib.get_close_matches(key[:MAX_SHOWN], known, 1)
        mend = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
        problems.append(ConfigProblem((*path, key[:MAX_SHOWN]), "is unknown", mend))


def explained(value: Any, message: str, kind: Any) -> tuple[str, str]:
    """`Expected …` of msgspec as what is there and what to write instead."""
    if message.startswith("Invalid enum value"):
        return f"is {shown(value)}", f"write {', '.join(_choices(kind))}"
    inside = " in it" if " - at `" in message else ""
    pattern = message.partition(" matching regex ")[2]
    for begin, words in PATTERNS.items():
        if pattern.startswith(begin):
            return f"is {shown(value)}", f"write {words}{inside}"
    wanted = re.sub(r", got .*| - at `.*", "", message.removeprefix("Expected ")).replace("`", "")
    if (bound := BOUND.fullmatch(wanted)) is not None and isinstance(value, int | float):
        way = {"<=": "at most", "<": "less than", ">=": "at least", ">": "more than"}
        return f"is {value:,.10g}", f"write {way[bound[1]]} {float(bound[2]):,.10g}{inside}"
    if wanted.startswith("float") and isinstance(value, str) and SPAN.fullmatch(value):
        return f"is {shown(value)}", f"write a number, in seconds{inside}"
    return f"is {shown(value)}", f"write {wanted}{inside}"


def shown(value: Any) -> str:
    """A wrong value, not all of it if it is long."""
    text = _brief.repr(value)  # `repr` would go through all of a value of any size
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 2 * MAX_SHOWN
_brief.maxdict = _brief.maxlist = _brief.maxtuple = MAX_SHOWN


def _choices(kind: Any) -> list[str]:
    found = msgspec.inspect.type_info(kind)
    if isinstance(found, msgspec.inspect.EnumType):
        return [str(member.value) for member in found.cls]
    return [str(value) for value in getattr(found, "values", ())]
