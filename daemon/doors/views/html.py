"""HTML from templates: the environment and the filters of all pages.

Names of pools, jobs and users are untrusted, so every value is escaped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from daemon.journal.audit import TIMES
from sia.console.terminal import printable
from sia.wording import NONE, as_typed, counted, decimal, duration, percent

SHOWN = 200
"""Maximum characters of a name on a page; longer names are cut with an ellipsis."""

UNSEEN = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminal escape sequences and other control characters."""


def isolated(text: str) -> str:
    """Wrap plain text in Unicode isolates, which keep its direction from affecting other text."""
    return f"\u2068{text[:SHOWN]}\u2069"


def quoted(text: str) -> str:
    """Percent-encode text as one path segment."""
    return quote(text, safe="")


BDI = Markup("<bdi>{}</bdi>")
TIME = Markup('<time datetime="{}">{} UTC</time>')


def name(text: str) -> Markup:
    """Return a user-chosen name in a <bdi> element, which isolates its writing direction."""
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return BDI.format(short)


def moment(time: float | None) -> Markup | str:
    """Return a <time> element in UTC; the script converts it to the reader's time zone."""
    if time is None:
        return NONE
    when = datetime.fromtimestamp(time, UTC)
    return TIME.format(when.strftime("%Y-%m-%dT%H:%M:%SZ"), when.strftime("%Y-%m-%d %H:%M:%S"))


def plain(text: str) -> str:
    """Remove control characters and escape sequences from job output."""
    return UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def value(of: Any, key: str = "") -> Markup | str:
    """Format a value of an audit record: a time, text, or JSON."""
    if key in TIMES and isinstance(of, int | float):
        return moment(of)
    return name((of or NONE) if isinstance(of, str) else msgspec.json.encode(of).decode())


def share(value: float | None) -> str:
    """Format a fraction as percent."""
    return NONE if value is None else f"{percent(100 * value)} %"


def number(value: float | None) -> str:
    """Format a number with thousands separators."""
    return NONE if value is None else f"{value:,}"


def exact(time: float | None) -> str:
    """Format a time in UTC with milliseconds, enough to recalculate GPU-hours."""
    if time is None:
        return NONE
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def hours(value: float) -> str:
    """Format GPU-hours with four decimals, so that a reader can check the sums."""
    return f"{value:,.4f}"


def _for_terminal(value: Any) -> Any:
    return printable(value) if type(value) is str else value


@cache
def environment(*packages: str, for_files: bool = False) -> Environment:
    """Return the environment of the templates of these packages; undefined names raise.

    `for_files` escapes control characters, as a file may be printed on a terminal.
    """
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_for_terminal if for_files else None,
    )  # fmt: skip
    made.filters |= {
        "counted": counted, "decimal": decimal, "exact": exact, "hours": hours,
        "isolated": isolated, "moment": moment,
        "name": name, "number": number, "percent": percent, "plain": plain, "share": share,
        "short": as_typed, "span": duration, "urlencode": quoted, "value": value,
    }  # fmt: skip
    made.globals["dash"] = NONE
    return made
