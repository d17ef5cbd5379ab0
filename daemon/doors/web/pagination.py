"""Lists of which a page shows a piece: numbered pieces, and addresses that change one parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.operations import Parameter

ROWS = 100
"""Of a table on one page: what people look through, drawn in some ten milliseconds."""

MAX_NUMBER = 10**6
"""Of a page; there are never so many."""


PAGE = Parameter("page", Annotated[int, Meta(ge=1, le=MAX_NUMBER)], "Which page.", default=1)


class PageSlice(NamedTuple):
    """A piece of a list."""

    rows: Sequence[Any]
    page: int
    pages: int


def cut(rows: Sequence[Any], page: int) -> PageSlice:
    """Page `page` of a list, from 1 on; the last one instead of those beyond it."""
    pages = pages_of(len(rows))
    page = min(page, pages)
    return PageSlice(rows[(page - 1) * ROWS : page * ROWS], page, pages)


def pages_of(count: int) -> int:
    """Pages that so many rows are on."""
    return max(1, -(-count // ROWS))


def addresses(request: web.Request) -> Callable[..., str]:
    """Makes the page's own address with some parameters otherwise; None leaves one out."""

    def address(**changes: Any) -> str:
        query = {**request.query, **changes}
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        return str(request.rel_url.with_query(given))

    return address
