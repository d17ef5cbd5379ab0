"""Render a statement as one self-contained HTML page without scripts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from daemon.wire.accounts import Statement
from sia.console.terminal import printable
from sia.wording import NONE, duration


def page(statement: Statement) -> str:
    """Render the page. Names of pools and jobs are untrusted and escaped. O(rows)."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("daemon.doors.views"), PackageLoader("replay.report")]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": _moment, "span": duration, "hours": _hours}
    return environment.get_template("statement.html").render(s=statement, dash=NONE)


def _shown(value: Any) -> Any:
    """Strip control characters from names: the file may be printed on a terminal."""
    return printable(value) if type(value) is str else value


def _moment(time: float | None) -> str:
    """Format a time in UTC with milliseconds, enough to recalculate the GPU-hours."""
    if time is None:
        return NONE
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _hours(value: float) -> str:
    """Format GPU-hours with four decimals, so that a reader can check the sums."""
    return f"{value:,.4f}"
