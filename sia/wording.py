"""Numbers and times as people read and write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from math import inf, isfinite

from sia.limits import MAX_TIME

MINUTE, HOUR, DAY, WEEK = 60.0, 3600.0, 86400.0, 604800.0
UNITS = {"s": 1.0, "m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
SMALLER = {"m": "s", "h": "m", "d": "h"}
"""The smaller unit that is shown with each unit."""
NUMBER = r"\d+(?:\.\d+)?"
NONE = "–"

PRODUCT = "sia-scheduler"
"""The name under which SIA is installed."""

SHOWN = 40
"""Largest number of characters of a wrong input that a message repeats."""

COMPARED = 100
"""Largest number of names that a mistyped name is compared with; this takes about 0.3 ms."""

LETTERS = 64
"""Largest number of letters of a compared name; the time grows with its square."""

NAMED = 5
"""Largest number of names in one message; more would not fit into a line."""


TIME = re.compile("".join(f"({NUMBER}{unit})?" for unit in reversed(UNITS)))
"""Numbers with their units, the largest unit first."""


def parse_seconds(text: str) -> float:
    """Parse `90s`, `5m`, `1.5h`, `1h30m`, `2d`, `1w` or `0` as seconds.

    A number without a unit is refused, because 90 could mean seconds, minutes or hours. Raises
    ValueError.
    """
    typed = text.strip()
    if re.fullmatch(NUMBER, typed):
        if float(typed) == 0:
            return 0.0
        some = typed if len(typed) <= SHOWN else "90"
        raise ValueError(f"{typed[:SHOWN]!r} has no unit; write {some}s, {some}m or {some}h")
    if not typed or TIME.fullmatch(typed) is None:
        raise ValueError(
            f"{text[:SHOWN]!r} is not a time; write a number with s, m, h, d or w, like 5m"
        )
    parts = re.findall(f"({NUMBER})([smhdw])", typed)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if seconds >= MAX_TIME:
        raise ValueError(f"{typed[:SHOWN]!r} is too long; use less than {MAX_TIME:g} seconds")
    return seconds


def duration(seconds: float | None) -> str:
    """Return seconds as `12 s`, `3 m 20 s`, `5 h` or `3 d 4 h`, rounded to the smaller unit.

    None and infinity become `–`.
    """
    if seconds is None or not isfinite(seconds):
        return NONE
    if seconds < MINUTE - 0.5:
        return f"{seconds:.0f} s"
    for unit, below in (("m", HOUR), ("h", 2 * DAY), ("d", inf)):
        small = SMALLER[unit]
        each, parts = UNITS[small], round(UNITS[unit] / UNITS[small])
        whole, rest = divmod(round(seconds / each), parts)
        if (whole * parts + rest) * each < below:
            break
    return f"{whole:,} {unit} {rest} {small}" if rest else f"{whole:,} {unit}"


def decimal(value: float | None, digits: int = 2) -> str:
    """Return a number with `digits` decimals; a small number never shows as zero."""
    if value is None:
        return NONE
    if digits and 0 < abs(value) < 0.5 / 10**digits:
        return f"{value:.1g}"
    return f"{value:,.{digits}f}" if isfinite(value) else str(value)


def counted(n: int, what: str) -> str:
    """Return `1 job` or `2,000 jobs`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def some(names: Sequence[str]) -> str:
    """Return the first `NAMED` names, and the number of the others."""
    more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that is most like a mistyped one, or None if none is close.

    Looks at no more than `COMPARED` names of `LETTERS` letters, so that a refused command takes no
    longer than an accepted one.
    """
    if len(name) > LETTERS:
        return None
    close = get_close_matches(name, list(islice(known, COMPARED)), n=1)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'status'?` to end a message with, or nothing if no name is close."""
    close = nearest(name, known)
    return "" if close is None else f" Did you mean {close!r}?"


def as_typed(seconds: float) -> str:
    """Return seconds in the form of an option, in the largest whole unit: `2d`, `90m`, `0.5s`."""
    whole = (unit for unit, size in reversed(UNITS.items()) if seconds and not seconds % size)
    unit = next(whole, "s")
    return f"{seconds / UNITS[unit]:g}{unit}"


def percent(value: float | None) -> str:
    """Return a percentage; a small one never shows as zero."""
    if value is None:
        return NONE
    return f"{value:.2f}" if value == 0 or value >= 0.01 else f"{value:.1g}"


def install_extra(extra: str) -> str:
    """Return the command that installs an extra, in an environment of SIA's own."""
    return f"pipx install --force '{PRODUCT}[{extra}]'"
