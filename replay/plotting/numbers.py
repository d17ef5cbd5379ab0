"""Formats numbers for reports."""

from __future__ import annotations

from markupsafe import Markup

from sia.wording import NONE, duration

TIMES = "\N{MULTIPLICATION SIGN}"


def speed(value: float | None) -> str:
    """Format a speed-up with about three digits, like `28.5x`."""
    if value is None:
        return NONE
    for least, digits in ((100, 0), (10, 1), (0.1, 2)):
        if value >= least:
            return f"{value:,.{digits}f}{TIMES}"
    return f"{value:.2g}{TIMES}"


def hours(value: float) -> str:
    """Format GPU-hours, with decimals for small values; a positive value never becomes 0."""
    if 0 < value < 0.095:
        return f"{value:.1g}"
    return f"{value:,.1f}" if 0 < value < 99.95 else f"{value:,.0f}"


def minutes(value: float) -> str:
    """Format minutes with a suitable unit; a positive time never becomes 0."""
    return duration(value * 60) if value == 0 or value * 60 >= 1 else f"{value * 60:.2g} s"


def share(part: float, whole: float) -> str:
    """Format a fraction in percent, with one decimal."""
    value = 100 * part / whole
    return "under 0.1 %" if 0 < value < 0.05 else f"{value:.1f} %"


def inlined(text: str) -> Markup:
    """Mark a figure as HTML, so that it is not escaped again."""
    return Markup(text)  # noqa: S704  matplotlib has escaped the names in it
