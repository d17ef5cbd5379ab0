"""A statement as one HTML page that needs nothing else, not even a script."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from daemon.wire.accounts import Statement
from sia.console.terminal import printable
from sia.wording import NONE, duration


def page(statement: Statement) -> str:
    """The page; names of pools and jobs come from strangers and are escaped. O(rows)."""
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
    """Names without what drives a terminal, in which somebody may look at the file."""
    return printable(value) if type(value) is str else value


def _moment(time: float | None) -> str:
    """UTC, to the millisecond, so that GPU-hours can be worked out again."""
    if time is None:
        return NONE
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _hours(value: float) -> str:
    """To the second, so that sums can be checked."""
    return f"{value:,.4f}"
