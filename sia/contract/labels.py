"""Labels of policies: `NAME`, or `NAME:KEY=VALUE:KEY=VALUE` with options of the policy's own.

A bare word sets a flag, or the policy's first option: `chronus:fill`, `jvu:puo`. `+` joins a list:
`las:thresholds=3600+36000`. Values are plain numbers (times are in seconds) or words. The options
are the fields of the policy's `Params`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from sia.wording import did_you_mean, parse_seconds


class CheckedOptions(Struct, frozen=True):
    """Options that depend on whether another one is given, even if it has its usual value."""

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Refuse options that exclude each other; `given` is by name. Raises ValueError."""
        raise NotImplementedError


def name_of(label: str) -> str:
    """Return the policy's name in a label, which may name predictors after `@`."""
    return label.partition("@")[0].partition(":")[0]


def folder_of(label: str) -> str:
    """Return the name of the folder with a policy's results: the label with `/` written `_`."""
    return label.replace("/", "_")


def params_of(label: str, kind: type[Struct], defaults: Mapping[str, Any] | None = None) -> Struct:
    """Return the options in a label, completed from `defaults` and then from those of `kind`.

    The label has no part after `@`.

    Raises ValueError, in one line that names the label, for an unknown option, a value of another
    type or out of bounds, or an option that is given twice.
    """
    name, *parts = label.split(":")
    known = {field.encode_name: field for field in fields(kind)}
    given: dict[str, Any] = {}
    for part in parts:
        key, value = _pair(label, name, part, known)
        if key in given:
            raise ValueError(f"{label}: option {key} is given twice; leave one out")
        given[key] = value
    everything = {**(defaults or {}), **given}
    try:
        params = msgspec.convert(everything, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{label}: {_worded(str(error), given)}") from None
    if isinstance(params, CheckedOptions):
        try:
            params.check_given(everything)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None
    for key, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, float) and not isfinite(each):  # no JSON could keep it
                raise ValueError(f"{label}: {key} must be finite (got {each:g}); change it")
    return params


BOUND = re.compile(r"Expected `(?:float|int)` (>=|>|<=|<) (\S+) - at `\$\.(\w+)(?:\[(\d+)\])?`")
"""The message of msgspec about a number out of bounds, also if the number is in a list."""

WORDS = {">=": "at least", ">": "above", "<=": "at most", "<": "below"}


def _worded(text: str, given: Mapping[str, Any]) -> str:
    """Return a message of msgspec about an option in plain words, with the value that was given."""
    found = BOUND.fullmatch(text)
    if found is None:
        return text
    sign, bound, key, place = found.groups()
    value = given.get(key) if place is None else given.get(key, ())[int(place)]
    got = "" if value is None else f" (got {value:g})"
    return f"{key} must be {WORDS[sign]} {float(bound):g}{got}; change it"


def _pair(label: str, name: str, part: str, known: Mapping[str, FieldInfo]) -> tuple[str, Any]:
    key, equals, text = part.partition("=")
    if not known:
        raise ValueError(f"{label}: {name} has no options; leave out :{part}")
    if equals:
        field = known.get(key)
        if field is None:
            hint = did_you_mean(key, [*known])
            raise ValueError(
                f"{label}: {name} has no option {key!r}; it has {', '.join(known)}"
                f"{hint and f'.{hint}'}"
            )
        return key, _value(label, field, text)
    field = known.get(part)
    if field is not None and field.type is bool:
        return part, True
    first = next(iter(known.values()))
    if field is not None:
        raise ValueError(f"{label}: option {part} needs a value; write {part}=VALUE")
    try:
        return first.encode_name, _value(label, first, part)
    except ValueError as error:  # it may be a misspelt option without a value
        hint = did_you_mean(part, [*known])
        raise ValueError(f"{error}{hint and f'.{hint}'}") from None


def _value(label: str, field: FieldInfo, text: str) -> Any:
    """Convert the text of an option to the type of its field."""
    kind = _plain(field.type)
    if get_origin(kind) is tuple:
        return [_scalar(label, field, _plain(get_args(kind)[0]), each) for each in text.split("+")]
    return _scalar(label, field, kind, text)


def _plain(kind: Any) -> Any:
    """Return a type without its bounds, and without None if that is a choice."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    choices = [each for each in get_args(kind) if each is not type(None)]
    return _plain(choices[0]) if type(None) in get_args(kind) else kind


def _in_plain(text: str) -> str:
    """Return how to write a time with a unit, such as 20m, as a plain number; empty otherwise."""
    try:
        return f"; times in labels are seconds: write {parse_seconds(text):g}"
    except ValueError:
        return ""


def _scalar(label: str, field: FieldInfo, kind: Any, text: str) -> Any:
    key = field.encode_name
    if kind is bool:
        if text not in ("yes", "no"):
            raise ValueError(f"{label}: {key} must be yes or no (got {text!r})")
        return text == "yes"
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what, fix = ("a whole number", "") if kind is int else ("a number", _in_plain(text))
            raise ValueError(f"{label}: {key} must be {what} (got {text!r}){fix}") from None
    if get_origin(kind) is Literal and text and text not in get_args(kind):
        choices = ", ".join(filter(None, get_args(kind)))
        raise ValueError(f"{label}: {key} must be one of {choices} (got {text!r})")
    if not text:
        raise ValueError(f"{label}: {key} is empty; write {key}=VALUE or leave it out")
    return text
