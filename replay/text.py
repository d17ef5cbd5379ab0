"""Numbers as people read and write them."""

from __future__ import annotations

import re
from math import isfinite

import click

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
NONE = "–"


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1.5h`, `2d` or `1w` as seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no time; write a number and s, m, h, d or w, like 5m")
    return float(match[1]) * UNITS[match[2] or "s"]


class Seconds(click.ParamType[float]):
    """A time on the command line."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse it, or fail as click wants."""
        if isinstance(value, float):
            return value
        try:
            return parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def duration(seconds: float | None) -> str:
    """Seconds as `12 s`, `3 m 20 s`, `5 h 12 m` or `3 d 4 h`."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.0f} s"
    for unit, size, small, rest in (("m", 60, "s", 1), ("h", 3600, "m", 60)):
        if seconds < size * (60 if unit == "m" else 48):
            return f"{seconds // size:.0f} {unit} {seconds % size // rest:.0f} {small}"
    return f"{seconds // 86400:,.0f} d {seconds % 86400 // 3600:.0f} h"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with so many digits after the point; a small one does not show as zero."""
    if value is None:
        return NONE
    if digits and 0 < abs(value) < 0.5 / 10**digits:
        return f"{value:.1g}"
    return f"{value:,.{digits}f}" if isfinite(value) else str(value)


def percent(value: float | None) -> str:
    """A percentage; a small one that is not zero never shows as zero."""
    if value is None:
        return NONE
    return f"{value:.2f}" if value == 0 or value >= 0.01 else f"{value:.1g}"
