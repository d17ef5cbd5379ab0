"""Numbered pages of lists, and addresses that change query parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.operations import Parameter

ROWS = 100
"""Maximum number of rows of a table on one page; rendering takes about 10 ms."""

MAX_NUMBER = 10**6
"""Maximum page number."""


PAGE = Parameter("page", Annotated[int, Meta(ge=1, le=MAX_NUMBER)], "Page number.", default=1)


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
