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
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from daemon.journal.audit import TIMES
from sia.console.terminal import printable
from sia.wording import DAY, HOUR, MINUTE, NONE, as_typed, counted, decimal, duration, percent

SHOWN = 200
"""Maximum characters of a name on a page; longer names are cut with an ellipsis."""

UNSEEN = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminal escape sequences and other control characters."""

TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Characters that change the direction of the text after them."""


def isolated(text: str) -> str:
    """Wrap plain text in Unicode isolates, which keep its direction from affecting other text."""
    return f"\u2068{text[:SHOWN]}\u2069"


def quoted(text: str) -> str:
    """Percent-encode text as one path segment."""
    return quote(text, safe="")


BDI = Markup("<bdi>{}</bdi>")
EXACT = Markup('<time class="exact" datetime="{}">{} UTC</time>')

FAR = 30 * DAY
"""Distance in seconds from which a time is shown as a date: 30 days."""

HOURS_ALONE = 10 * HOUR
"""Distance in seconds from which minutes are omitted. Below `DAYS_FROM` days are not used."""

DAYS_FROM = 2 * DAY


def name(text: str) -> Markup:
    """Return a name chosen by a user, in a <bdi> element, which isolates its writing direction."""
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return BDI.format(short)


def moment(time: float | None, now: float) -> Markup | str:
    """Return a <time> element that says how far away a time is, with the exact time as its title.

    The page's script keeps the text current, and converts the title to the reader's time zone.
    """
    if time is None:
        return NONE
    utc = in_utc(time)
    return Markup(  # noqa: S704  digits and our own words; `Markup.format` takes four times as long
        f'<time datetime="{utc[:10]}T{utc[11:]}Z" title="{utc} UTC">{relative(time, now)}</time>'
    )


def exactly(time: float | None) -> Markup | str:
    """Return a <time> element with the exact time in UTC."""
    return NONE if time is None else EXACT.format(stamp(time), in_utc(time))


def stamp(time: float) -> str:
    """Return a time in the form of the attribute `datetime`."""
    utc = in_utc(time)
    return f"{utc[:10]}T{utc[11:]}Z"


def precise(time: float) -> str:
    """Return a time in the form used in addresses: UTC, to the millisecond, rounded down."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def in_utc(time: float) -> str:
    """Return a time in UTC to the second."""
    return str(datetime.fromtimestamp(int(time), UTC))[:19]


def relative(time: float, now: float) -> str:
    """Return `in 12 min`, `3 h 20 min ago`, `now`, or a date. `sia.js` has the same rule."""
    away = abs(time - now)
    if away >= FAR:
        return in_utc(time)[:10]
    if away < 1:
        return "now"
    return f"in {_distance(away)}" if time > now else f"{_distance(away)} ago"


def _distance(seconds: float) -> str:
    """Return seconds in whole units, rounded down."""
    if seconds < MINUTE:
        return f"{seconds // 1:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    if seconds >= DAYS_FROM:
        return f"{seconds // DAY:.0f} d"
    hours, minutes = seconds // HOUR, seconds % HOUR // MINUTE
    more = f" {minutes:.0f} min" if minutes and seconds < HOURS_ALONE else ""
    return f"{hours:.0f} h{more}"


@pass_context
def _moment(context: Context, time: float | None) -> Markup | str:
    """Return `moment` at the page's `now`; without one, the exact time."""
    now = context.get("now")
    return exactly(time) if now is None else moment(time, now)


def plain(text: str) -> str:
    """Remove control characters and escape sequences from job output."""
    return UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def value(of: Any, key: str = "") -> Markup | str:
    """Format a value of an audit record: a time, text, texts by name, or JSON."""
    if key in TIMES and isinstance(of, int | float):
        return exactly(of)
    if isinstance(of, dict) and all(isinstance(each, str) for each in of.values()):
        of = "; ".join(f"{who}: {said}" if said else who for who, said in of.items())
    if of is None or of == "":
        of = NONE
    return name(of if isinstance(of, str) else msgspec.json.encode(of).decode())


def straight(text: str) -> str:
    """Return a text whose names are isolated, so that none changes the direction of others."""
    return TURNS.sub("", text)


def sentence(text: str) -> str:
    """Return text with a capital letter first; names within keep their letters."""
    return text[:1].upper() + text[1:]


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


def measured(value: float | None, unit: str) -> str:
    """Format a value of a chart; seconds as a duration."""
    if value is None:
        return NONE
    return duration(value) if unit == "seconds" else f"{value:,g}"


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
        "counted": counted, "decimal": decimal, "exact": exact, "exactly": exactly, "hours": hours,
        "isolated": isolated, "measured": measured, "moment": _moment,
        "name": name, "number": number, "percent": percent, "plain": plain, "precise": precise,
        "sentence": sentence, "share": share, "short": as_typed, "span": duration,
        "straight": straight, "urlencode": quoted, "value": value,
    }  # fmt: skip
    made.globals["dash"] = NONE
    return made
