"""The range of time in addresses of pages. Every page accepts it, and links keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from yarl import URL

from daemon.doors.http.operations import Parameter, query_of
from daemon.doors.http.times import FROM, TO, range_of
from daemon.wire.plan import Range

RANGES = (
    ("1h", "an hour"), ("6h", "6 hours"), ("1d", "a day"), ("1w", "a week"), ("30d", "30 days"),
)  # fmt: skip
"""Preset ranges of time that end now, with their names."""

USUAL = "1d"
"""The range of a page whose address has no range."""

RANGE = Parameter("range", Range, "How far back the charts go.", default=USUAL)

KEPT = (RANGE, FROM, TO)
"""Parameters that links keep."""


def page_query(request: web.Request, parameters: tuple[Parameter, ...] = ()) -> dict[str, Any]:
    """Convert the query of a page, which may have a range of time as well. Raises ProblemError."""
    params = query_of(request, (*parameters, *KEPT))
    range_of(params)
    return params


def kept_of(request: web.Request) -> dict[str, str]:
    """Return the parameters of the range of time in a page's address, as they were written."""
    return {p.name: request.query[p.name] for p in KEPT if request.query.get(p.name)}


def keeping(kept: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that adds these parameters to addresses that do not have them."""

    def keep(path: str) -> str:
        url = URL(path, encoded=True)
        return str(url.with_query({**kept, **url.query}))

    return keep if kept else str
