"""Read form bodies, and check that they were sent from a page of this daemon (CSRF)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from aiohttp import web

from daemon.doors.http.authentication import Sessions
from daemon.doors.http.operations import body_of
from daemon.wire.problems import ProblemError


class Fields(NamedTuple):
    """Fields of a form by name."""

    all: dict[str, str]


FORM = web.RequestKey("form", Fields)
"""The parsed form of a request."""

FORM_TYPE = "application/x-www-form-urlencoded"
"""Content type of forms."""

MAX_FIELDS = 50
"""Maximum number of fields; the longest form has a dozen."""

MAX_FORM = 2**16
"""Maximum bytes of a form; the largest what-if form has about 20,000. Parsing megabytes sent by
clients that are not signed in would block the event loop for seconds."""

SEAL = "form"
"""Name of the form field that carries the session's CSRF token."""


async def form_of(request: web.Request) -> Mapping[str, str]:
    """Return the fields of a form; the last value of a name wins. Raises ProblemError."""
    if FORM not in request:
        body = await _sent(request)
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise ProblemError(
                422, "invalid form", "the form cannot be parsed", "submit the form from the page"
            ) from None
        request[FORM] = Fields(dict(pairs))
    return request[FORM].all


async def _sent(request: web.Request) -> bytes:
    """Return the body, reading at most `MAX_FORM` bytes. Raises ProblemError."""
    if (request.content_length or 0) > MAX_FORM:
        raise _TOO_LARGE
    # Clone the request: aiohttp cannot clone it after the body has been read.
    copy = request.clone(client_max_size=MAX_FORM)
    try:
        return await body_of(copy, FORM_TYPE)
    except web.HTTPRequestEntityTooLarge:
        raise _TOO_LARGE from None


_TOO_LARGE = ProblemError(
    413, "too large", f"the form has more than {MAX_FORM:,} bytes", "shorten the fields"
)


async def check_form(request: web.Request, sessions: Sessions) -> None:
    """Require that a form was sent from a page of this daemon. Raises ProblemError.

    The cookie alone proves nothing: browsers also send it with forms of pages on other ports of
    this host, which count as the same site.
    """
    check_site(request)
    if not sessions.is_ours(request, (await form_of(request)).get(SEAL, "")):
        raise ProblemError(
            403, "not from our page", "the form belongs to another session or another site",
            "reload the page and submit the form again",
        )  # fmt: skip


def check_site(request: web.Request) -> None:
    """Refuse requests that a page of another origin makes the browser send. Raises ProblemError."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise ProblemError(
            403, "not from our page", "the request comes from another site", "open the page here"
        )
