"""Split lists into numbered pages, and build addresses that change query parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.operations import Parameter

ROWS = 100
"""Rows of a table on one page; rendering takes about 10 ms."""

MAX_NUMBER = 10**6
"""Maximum page number."""


PAGE = Parameter("page", Annotated[int, Meta(ge=1, le=MAX_NUMBER)], "Page number.", default=1)


class PageSlice(NamedTuple):
    """One page of a list."""

    rows: Sequence[Any]
    page: int
    pages: int


def cut(rows: Sequence[Any], page: int) -> PageSlice:
    """Return page `page` (from 1) of a list, or the last page if there are fewer."""
    pages = pages_of(len(rows))
    page = min(page, pages)
    return PageSlice(rows[(page - 1) * ROWS : page * ROWS], page, pages)


def pages_of(count: int) -> int:
    """Return the number of pages for a number of rows."""
    return max(1, -(-count // ROWS))


def addresses(request: web.Request) -> Callable[..., str]:
    """Return a function that changes parameters of the page's address; None removes one."""

    def address(**changes: Any) -> str:
        query = {**request.query, **changes}
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        return str(request.rel_url.with_query(given))

    return address
