"""Style and script of the pages: our own, few, and from this daemon alone."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from aiohttp import web

from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.http.sessions import UI
from daemon.model.access import Rule
from daemon.wire.problems import ProblemError

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

FOREVER = "public, max-age=31536000, immutable"
"""An address has the digest of what is there, so that it never changes."""


class Asset(NamedTuple):
    """A file, as it is sent."""

    body: bytes
    kind: str
    digest: str


class Assets:
    """All of them, read once."""

    def __init__(self) -> None:
        """Read them."""
        self._all: dict[str, Asset] = {}
        for file in files("daemon.doors.web").joinpath("assets").iterdir():
            if kind := KINDS.get(file.name.rpartition(".")[2]):
                body = file.read_bytes()
                self._all[file.name] = Asset(body, kind, sha256(body).hexdigest()[:16])

    def address(self, name: str) -> str:
        """Where a page finds one."""
        return f"{UI}/assets/{name}?{self._all[name].digest}"

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "GET", f"{UI}/assets/{{name}}", Rule.OPEN, self.asset, "A file of the pages.",
                {200: "text/css"}, parameters=(Parameter("name", str, "Of the file.", "path"),),
            )
        ]  # fmt: skip

    async def asset(self, request: web.Request) -> web.Response:
        """Only what was there at the start: a name is no path."""
        found = self._all.get(request.match_info["name"])
        if found is None:
            raise ProblemError(404, "Not Found", "there is nothing here", "see /ui/")
        return web.Response(
            body=found.body, content_type=found.kind, charset="utf-8",
            headers={"Cache-Control": FOREVER},
        )  # fmt: skip
