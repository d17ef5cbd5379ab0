"""Lists of which a page shows a piece: numbered pieces, and addresses that change one parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aiohttp import web

ROWS = 100
"""Of a table on one page: what people look through, drawn in some ten milliseconds."""

MAX_NUMBER = 10**6
"""Of a page; there are never so many."""


class Cut(NamedTuple):
    """A piece of a list."""

    rows: Sequence[Any]
    page: int
    pages: int


def cut(rows: Sequence[Any], page: int) -> Cut:
    """Page `page` of a list, from 1 on; the last one instead of those beyond it."""
    pages = max(1, -(-len(rows) // ROWS))
    page = min(page, pages)
    return Cut(rows[(page - 1) * ROWS : page * ROWS], page, pages)


def addresses(request: web.Request) -> Callable[..., str]:
    """Makes the page's own address with some parameters otherwise; None leaves one out."""

    def address(**changes: Any) -> str:
        query = {**request.query, **changes}
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        return str(request.rel_url.with_query(given))

    return address
