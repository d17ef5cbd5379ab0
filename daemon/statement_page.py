"""A statement as one HTML page that needs nothing else, not even a script."""

from __future__ import annotations

from datetime import UTC, datetime

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from daemon.schemas_accounts import Statement
from replay.text import NONE, duration


def page(statement: Statement) -> str:
    """The page; names of pools and jobs come from strangers and are escaped. O(rows)."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("daemon"), PackageLoader("replay")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": _moment, "span": duration, "hours": _hours}
    return environment.get_template("statement.html").render(s=statement, none=NONE)


def _moment(time: float | None) -> str:
    """UTC, to the second."""
    if time is None:
        return NONE
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _hours(value: float) -> str:
    """To the second, so that sums can be checked."""
    return f"{value:,.4f}"
