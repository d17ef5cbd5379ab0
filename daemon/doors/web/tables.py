"""Tables: sortable columns, pages of rows, and labels for phones, where each row is a card."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from aiohttp import web
from markupsafe import Markup

from daemon.doors.http.operations import Parameter
from daemon.doors.web.pagination import ROWS, addresses, pages_of
from daemon.doors.web.terms import TERMS

MAX_SORTED = 2000
"""Maximum number of rows that are read from the API and sorted: about 40 ms. The page says so."""

SORTED_SOME = (
    "Only the first {:,} of {} were sorted. Choose a pool or a user, so that fewer jobs match."
)

SEARCHED_SOME = (
    "Only the newest {:,} of {} were searched and sorted. Choose a range of time to see others."
)


class Column(NamedTuple):
    """A column of a table."""

    key: str
    """Value of the parameter `sort`, and name of the template's row that renders a cell."""
    title: str
    by: Callable[[Any], Any] | None = None
    """Returns the sort key of a row; None: the table cannot be sorted by this column."""
    number: bool = False
    """Whether cells are numbers, which are aligned right and sorted from the largest."""
    term: str = ""
    """The term of the glossary that explains the column."""

    @property
    def about(self) -> str:
        """What the values mean."""
        return TERMS[self.term] if self.term else ""


class Heading(NamedTuple):
    """The head of a column on a page; `link` sorts by the column."""

    column: Column
    order: Literal["", "ascending", "descending"]
    link: str


class Table(NamedTuple):
    """One page of a table."""

    headings: Sequence[Heading]
    rows: Sequence[Any]
    at: Mapping[str, Markup]
    """Attributes of the cells of a column, by its key."""
    total: int | None = None
    """Number of rows on all pages; None if it is unknown or the table has no pages."""
    page: int = 1
    address: Callable[..., str] | None = None
    note: str = ""
    """A sentence below the rows: what is left out."""

    @property
    def pages(self) -> int:
        """Number of pages."""
        return pages_of(self.total or 0)

    @property
    def first(self) -> int:
        """Number of the first row on this page."""
        return (self.page - 1) * ROWS + 1


def sort_of(columns: Sequence[Column], default: str = "") -> Parameter:
    """Return the query parameter that sorts a table: `KEY`, or `-KEY` for the largest first."""
    keys = [column.key for column in columns if column.by is not None]
    names = ("", *keys, *(f"-{key}" for key in keys))
    kind: Any = Literal[names]
    return Parameter("sort", kind, "Column to sort by; with - the largest first.", default=default)


def plain(columns: Sequence[Column], rows: Sequence[Any]) -> Table:
    """Return a table that is neither sorted nor split into pages."""
    headings = [Heading(column, "", "") for column in columns]
    return Table(headings, rows, _attributes(columns))


def table(
    request: web.Request,
    columns: Sequence[Column],
    rows: Iterable[Any],
    params: Mapping[str, Any],
    *,
    note: str = "",
) -> Table:
    """Sort rows by the page's parameter `sort`, and return page `page`. O(n log n)."""
    ordered = ordered_by(columns, rows, params["sort"])
    page = min(params["page"], pages_of(len(ordered)))
    shown = ordered[(page - 1) * ROWS : page * ROWS]
    return piece(request, columns, shown, {**params, "page": page}, len(ordered), note=note)


def piece(
    request: web.Request,
    columns: Sequence[Column],
    rows: Sequence[Any],
    params: Mapping[str, Any],
    count: int | None,
    *,
    note: str = "",
) -> Table:
    """Return a table of `rows`: one page of `count` rows, already in the order of `sort`."""
    address, sort = addresses(request), params["sort"]
    headings = [_heading(column, sort, address) for column in columns]
    page = params.get("page", 1)
    return Table(headings, rows, _attributes(columns), count, page, address, note)


def ordered_by(columns: Sequence[Column], rows: Iterable[Any], sort: str) -> list[Any]:
    """Return rows sorted by a column; rows without a value come last in both directions. Stable."""
    by = {column.key: column.by for column in columns}.get(sort.removeprefix("-"))
    if by is None:
        return [*rows]
    values = [(by(row), row) for row in rows]
    known = [each for each in values if each[0] is not None]
    known.sort(key=lambda each: each[0], reverse=sort.startswith("-"))
    return [row for _, row in known] + [row for value, row in values if value is None]


def _heading(column: Column, sort: str, address: Callable[..., str]) -> Heading:
    if column.by is None:
        return Heading(column, "", "")
    up, down = column.key, f"-{column.key}"
    first, second = (down, up) if column.number else (up, down)
    turned = second if sort == first else first
    link = address(sort=turned, page=None, cursor=None, before=None)
    order: Literal["", "ascending", "descending"] = ""
    if sort in (up, down):
        order = "ascending" if sort == up else "descending"
    return Heading(column, order, link)


CELL = Markup(' data-label="{}"')
NUMBER = Markup(' class="n" data-label="{}"')


def _attributes(columns: Sequence[Column]) -> dict[str, Markup]:
    """Return the class of each column's cells, and the title that a phone shows next to them."""
    return {
        column.key: (NUMBER if column.number else CELL).format(column.title) for column in columns
    }
