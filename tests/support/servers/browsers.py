"""A client of web pages without a browser: cookies, forms, and the text of a page."""

import re
from contextlib import asynccontextmanager
from html.parser import HTMLParser

from aiohttp import CookieJar
from aiohttp.test_utils import TestClient

from daemon.doors.views.html import stamp
from sia.wording import NONE
from tests.support.daemons.doors import TOKEN

PAGE = {"Accept": "text/html"}


@asynccontextmanager
async def browser(client, token=TOKEN):
    """Return a client with its own cookies, signed in with a token, or not (None)."""
    jar = CookieJar(
        unsafe=True
    )  # the daemon's URL has an IP address, for which cookies are off by default
    visitor = TestClient(client.server, cookie_jar=jar, headers=PAGE)
    try:
        if token is not None:
            status, _ = await sent(visitor, "/ui/sign-in", token=token, to="/ui/")
            assert status == 303
        yield visitor
    finally:
        await visitor.session.close()


async def seen(visitor, path, status=200):
    """Return the HTML of a page."""
    async with visitor.get(path) as response:
        text = await response.text()
        assert response.status == status, f"{path}: {response.status} {text}"
        assert response.content_type == "text/html"
        return text


async def sent(visitor, path, *, headers=None, **fields):
    """Send a form; return the status and the redirect or the page."""
    request = visitor.post(path, data=fields, headers=headers, allow_redirects=False)
    async with request as response:
        return response.status, response.headers.get("Location") or await response.text()


def seal_in(html):
    """Return the hidden token in the forms of a page."""
    return re.search(r'name="form" value="([0-9a-f]{64})"', html)[1]


def when(time):
    """How a page writes a time for scripts, whatever it shows."""
    return NONE if time is None else f'datetime="{stamp(time)}"'


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def parsed(html):
    """(tags with attributes, all of its text) as browsers read them."""
    page = _Page()
    page.feed(html)
    return page.tags, " ".join(" ".join(page.texts).split())


def filled(html):
    """What the fields of a page would send, by name."""
    values, menu = {}, None
    for tag, has in parsed(html)[0]:
        if tag == "select":
            menu = has["name"]
            values[menu] = ""
        elif tag == "option" and "selected" in has:
            values[menu] = has["value"]
        elif tag == "input" and "name" in has:
            values[has["name"]] = has.get("value", "")
    return values


class _Table(HTMLParser):
    """The rows of one table: the text of each cell by its label."""

    def __init__(self, table):
        super().__init__()
        self.table, self.inside, self.rows, self.label = table, False, [], None

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.inside = has.get("id") == self.table if tag == "table" else self.inside
        if self.inside and tag == "tr":
            self.rows.append({})
        elif self.inside and tag in ("td", "th"):
            self.label = has.get("data-label")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "table"
        self.label = None if tag in ("td", "th") else self.label

    def handle_data(self, data):
        if self.inside and self.label and data.strip():
            row = self.rows[-1]
            row[self.label] = " ".join(filter(None, (row.get(self.label), data.strip())))


def rows_of(html, table):
    """The rows of a table, each with the text of its cells by label."""
    found = _Table(table)
    found.feed(html)
    return [row for row in found.rows if row]
