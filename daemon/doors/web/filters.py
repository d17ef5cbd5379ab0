"""How pages say things: names that strangers chose, times, numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from daemon.journal.audit import TIMES
from sia.wording import NONE, as_typed, counted, decimal, duration, percent

SHOWN = 200
"""Characters of a name that a page shows; longer ones end in dots."""

UNSEEN = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What steers a terminal, and other characters that nobody sees."""


def isolated(text: str) -> str:
    """The same where there is no markup: what stands beside it keeps its direction."""
    return f"\u2068{text[:SHOWN]}\u2069"


def quoted(text: str) -> str:
    """As one step of an address, whatever is in it."""
    return quote(text, safe="")


BDI = Markup("<bdi>{}</bdi>")
TIME = Markup('<time datetime="{}">{} UTC</time>')


def name(text: str) -> Markup:
    """What somebody called something: by itself, whichever way it is written."""
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return BDI.format(short)


def moment(time: float | None) -> Markup | str:
    """A time in seconds: in UTC to begin with; a script has it in the reader's zone."""
    if time is None:
        return NONE
    when = datetime.fromtimestamp(time, UTC)
    return TIME.format(when.strftime("%Y-%m-%dT%H:%M:%SZ"), when.strftime("%Y-%m-%d %H:%M:%S"))


def plain(text: str) -> str:
    """What a job wrote, without what steers a terminal."""
    return UNSEEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def value(of: Any, key: str = "") -> Markup | str:
    """A value that a record has, whatever it is: times, text as it is, and all else as JSON."""
    if key in TIMES and isinstance(of, int | float):
        return moment(of)
    return name((of or NONE) if isinstance(of, str) else msgspec.json.encode(of).decode())


def share(value: float | None) -> str:
    """A share of 1, as percent."""
    return NONE if value is None else f"{percent(100 * value)} %"


def number(value: float | None) -> str:
    """With thousands apart."""
    return NONE if value is None else f"{value:,}"


@cache
def environment() -> Environment:
    """The templates: all values are escaped, and one that is missing is a mistake."""
    made = Environment(
        loader=PackageLoader("daemon.doors.web"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "counted": counted, "decimal": decimal, "isolated": isolated, "moment": moment,
        "name": name, "number": number, "percent": percent, "plain": plain, "share": share,
        "short": as_typed, "span": duration, "urlencode": quoted, "value": value,
    }  # fmt: skip
    made.globals["dash"] = NONE
    return made
