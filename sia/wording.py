"""Numbers as people read and write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite

from sia.limits import MAX_TIME

MINUTE, HOUR, DAY, WEEK = 60.0, 3600.0, 86400.0, 604800.0
UNITS = {"s": 1.0, "m": MINUTE, "h": HOUR, "d": DAY, "w": WEEK}
SMALLER = {"m": "s", "h": "m", "d": "h"}
"""The unit beside another where a time is said in both."""
NUMBER = r"\d+(?:\.\d+)?"
NONE = "–"

NAMED = 5
"""Names in one line, the first of them: more make no line."""


TIME = re.compile(rf"{NUMBER}s?|" + "".join(f"({NUMBER}{unit})?" for unit in reversed(UNITS)))
"""A number, or numbers with their units, the greatest first."""


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1.5h`, `1h30m`, `2d` or `1w` as seconds. Raises ValueError."""
    typed = text.strip()
    if not typed or TIME.fullmatch(typed) is None:
        raise ValueError(f"{text!r} is no time; write a number and s, m, h, d or w, like 5m")
    parts = re.findall(f"({NUMBER})([smhdw]?)", typed)
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if seconds >= MAX_TIME:
        raise ValueError(f"{text.strip()[:40]!r}: is too long; stay below {MAX_TIME:g} seconds")
    return seconds


def duration(seconds: float | None) -> str:
    """Seconds as `12 s`, `3 m 20 s`, `5 h` or `3 d 4 h`, rounded to the smaller unit.

    – where it is not known, or has no end.
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
    """A number with so many digits after the point; a small one does not show as zero."""
    if value is None:
        return NONE
    if digits and 0 < abs(value) < 0.5 / 10**digits:
        return f"{value:.1g}"
    return f"{value:,.{digits}f}" if isfinite(value) else str(value)


def counted(n: int, what: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def as_typed(seconds: float) -> str:
    """Seconds in the largest unit that they are a whole number of: `2d`, `90m`, `0.5s`."""
    whole = (unit for unit, size in reversed(UNITS.items()) if seconds and not seconds % size)
    unit = next(whole, "s")
    return f"{seconds / UNITS[unit]:g}{unit}"


def percent(value: float | None) -> str:
    """A percentage; a small one that is not zero never shows as zero."""
    if value is None:
        return NONE
    return f"{value:.2f}" if value == 0 or value >= 0.01 else f"{value:.1g}"
