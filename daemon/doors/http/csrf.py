"""What browsers send of forms, and whether it is a page of ours that has them send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from aiohttp import web

from daemon.doors.http.operations import body_of
from daemon.doors.http.sessions import Sessions
from daemon.wire.problems import ProblemError


class Fields(NamedTuple):
    """Of a form, by name."""

    all: dict[str, str]


FORM = web.RequestKey("form", Fields)
"""What was sent, once it has been read."""

FORM_TYPE = "application/x-www-form-urlencoded"
"""What browsers send forms as."""

MAX_FIELDS = 50
"""Of a form; the longest of ours has a dozen."""

MAX_FORM = 2**16
"""Bytes of a form: a what-if with fields as long as names may be has some 20,000. To take megabytes
apart, for people who have not even signed in, takes seconds in which nobody else is served."""

SEAL = "form"
"""The field that says that the form was on a page of this session's."""


async def form_of(request: web.Request) -> Mapping[str, str]:
    """The fields that were sent; the last of one name counts. Raises ProblemError."""
    if FORM not in request:
        body = await _sent(request)
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise ProblemError(
                422, "invalid form", "the form cannot be read", "send it from the page"
            ) from None
        request[FORM] = Fields(dict(pairs))
    return request[FORM].all


async def _sent(request: web.Request) -> bytes:
    """The body, of which no more is read than a form may have. Raises ProblemError."""
    if (request.content_length or 0) > MAX_FORM:
        raise _TOO_LARGE
    # A copy: whoever reads a request's body cannot clone it any more.
    copy = request.clone(client_max_size=MAX_FORM)
    try:
        return await body_of(copy, FORM_TYPE)
    except web.HTTPRequestEntityTooLarge:
        raise _TOO_LARGE from None


_TOO_LARGE = ProblemError(
    413, "too large", f"the form has more than {MAX_FORM:,} bytes", "write less into it"
)


async def check_form(request: web.Request, sessions: Sessions) -> None:
    """Go on only where a page of ours has the browser send this. Raises ProblemError.

    A cookie alone is no proof: pages that others serve from this host, on another port, are of the
    same site, and browsers send it for them too.
    """
    check_site(request)
    if not sessions.is_ours(request, (await form_of(request)).get(SEAL, "")):
        raise ProblemError(
            403, "not from our page", "the form is of another session, or another's page",
            "open the page anew and send it again",
        )  # fmt: skip


def check_site(request: web.Request) -> None:
    """Refuse what another site, or another port of this one, has a browser send."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise ProblemError(403, "not from our page", "another site sends it", "open the page here")
