"""Converts external values to structs and reports all of their problems at once.

`msgspec` is fast but stops at the first invalid value. This module then checks the keys one by
one.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo

MAX_SHOWN = 40
"""Maximum characters of an invalid value that a message quotes: enough to find the value."""

MAX_UNKNOWN = 20
"""Maximum number of unknown keys of an object that are reported. Finding the nearest key takes 0.2
ms for each."""

SECRET = frozenset(("env", "password", "secret", "token"))
"""Keys whose values no message quotes, because messages end up in logs."""

PATTERNS = {
    "'^[A-Za-z0-9_]": "letters, digits, dots, dashes, underscores, not starting with a dot or dash",
    "'^[A-Za-z0-9][": "at most 63 letters, digits, dots, dashes, starting with a letter or digit",
    "'^20[0-9]": "a month, such as 2026-11",
    "'^[^=": "at least one character, without = and NUL",
    r"'^[^\\u0000]": "text without NUL",
    "'": "text without control characters",
}
"""Fix for a value that does not match a pattern, by the beginning of the pattern."""

SPAN = re.compile(r"[0-9.]+ *(ms|s|min|m|h|d|w)")
"""A time with a unit, given where a number is expected."""

BOUND = re.compile(r"float ([<>]=?) ([-0-9.e+]+)")
"""The bound in a `msgspec` message about a number that is out of range."""

WORDS = (
    (re.compile(r" of length >= (\d+)"), r" of length \1 or more"),
    (re.compile(r" of length <= (\d+)"), r" of length \1 or less"),
    (re.compile(r" >= "), " of at least "),
    (re.compile(r" <= "), " of at most "),
    (re.compile(r" > "), " above "),
    (re.compile(r" < "), " below "),
    (re.compile(r"\bint\b"), "an integer"),
    (re.compile(r"\bfloat\b"), "a number"),
    (re.compile(r"\bstr\b"), "text"),
    (re.compile(r"\bbool\b"), "true or false"),
    (re.compile(r"\barray\b"), "a list"),
    (re.compile(r"\bobject\b"), "keys and values"),
)
"""Words for the types and bounds in `msgspec` messages, in order of replacement."""

T = TypeVar("T", bound=Struct)

Path = tuple[str | int, ...]
"""Keys and indices that lead to a value."""


class ConfigProblem(NamedTuple):
    """One invalid value: its path, the problem and the fix."""

    path: Path
    what: str
    fix: str

    def __str__(self) -> str:
        """Return `PATH: PROBLEM; FIX`."""
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"{where.removeprefix('.')}{': ' * bool(where)}{self.what}; {self.fix}"


def read(
    values: Any,
    kind: type[T],
    path: Path,
    problems: list[ConfigProblem],
    besides: Collection[str] = (),
) -> T | None:
    """Convert a mapping to a struct; each invalid value adds a problem and becomes the default.

    `besides` are keys that the caller reads. Returns None if a required key is missing or invalid.
    """
    if not isinstance(values, dict):
        problems.append(ConfigProblem(path, f"{shown(values)} is invalid", "use keys and values"))
        return None
    fields = _fields(kind)
    refuse_unknown(values, [*besides, *fields], path, problems)
    good = {}
    for name, field in fields.items():
        if name in values:
            try:
                good[field.name] = msgspec.convert(values[name], field.type)
            except msgspec.ValidationError as error:
                what, fix = explained(values[name], str(error), field.type)
                if name in SECRET:
                    what = "is invalid"
                problems.append(ConfigProblem((*path, name), what, fix))
        elif field.required:
            problems.append(ConfigProblem((*path, name), "is missing", "add it"))
    whole = all(field.name in good for field in fields.values() if field.required)
    try:
        return kind(**good) if whole else None
    except ValueError as error:  # values that are right one by one do not go together
        what, _, fix = str(error).partition("; ")
        problems.append(ConfigProblem(path, what, fix))
        return None


@cache
def _fields(kind: type[Struct]) -> Mapping[str, FieldInfo]:
    """Return the fields of a struct by key. To evaluate their types takes a millisecond."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def refuse_unknown(
    values: Mapping[str, Any], known: Collection[str], path: Path, problems: list[ConfigProblem]
) -> None:
    """Add a problem for each unknown key, with the nearest known key."""
    for key in islice((key for key in values if key not in known), MAX_UNKNOWN):
        near = difflib.get_close_matches(key[:MAX_SHOWN], known, 1)
        fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
        problems.append(ConfigProblem((*path, key[:MAX_SHOWN]), "is unknown", fix))


def explained(value: Any, message: str, kind: Any) -> tuple[str, str]:
    """Turn a `msgspec` error into the problem and the fix."""
    invalid = f"{shown(value)} is invalid"
    if message.startswith("Invalid enum value"):
        return invalid, f"use {', '.join(_choices(kind))}"
    inside = " in it" if " - at `" in message else ""
    pattern = message.partition(" matching regex ")[2]
    for begin, words in PATTERNS.items():
        if pattern.startswith(begin):
            return invalid, f"use {words}{inside}"
    wanted = re.sub(r", got .*| - at `.*", "", message.removeprefix("Expected ")).replace("`", "")
    if (bound := BOUND.fullmatch(wanted)) is not None and isinstance(value, int | float):
        way = {"<=": "at most", "<": "less than", ">=": "at least", ">": "more than"}
        return f"{value:,.10g} is invalid", f"use {way[bound[1]]} {float(bound[2]):,.10g}{inside}"
    if wanted.startswith("float") and isinstance(value, str) and SPAN.fullmatch(value):
        return invalid, f"use a number, in seconds{inside}"
    return invalid, f"use {_in_words(wanted)}{inside}"


def _in_words(wanted: str) -> str:
    """Return what `msgspec` expects in words, such as "an integer of at least 1"."""
    for pattern, words in WORDS:
        wanted = pattern.sub(words, wanted)
    return wanted


def shown(value: Any) -> str:
    """Return the `repr` of an invalid value, shortened to `MAX_SHOWN` characters."""
    text = _brief.repr(value)  # plain `repr` would format a value of any size in full
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 2 * MAX_SHOWN
_brief.maxdict = _brief.maxlist = _brief.maxtuple = MAX_SHOWN


def _choices(kind: Any) -> list[str]:
    found = msgspec.inspect.type_info(kind)
    if isinstance(found, msgspec.inspect.Metadata):
        found = found.type
    if isinstance(found, msgspec.inspect.UnionType):
        numbers = any(isinstance(each, msgspec.inspect.FloatType) for each in found.types)
        return [word for each in found.types for word in _words(each)] + ["a number"] * numbers
    return _words(found)


def _words(found: Any) -> list[str]:
    """Return the values of an enumeration or a literal, or nothing for any other type."""
    if isinstance(found, msgspec.inspect.EnumType):
        return [str(member.value) for member in found.cls]
    return [str(value) for value in getattr(found, "values", ())]
