"""Static files of the pages: style, script and icon."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from aiohttp import web

from daemon.doors.http.authentication import UI
from daemon.doors.http.operations import Operation, Parameter
from daemon.model.access import Rule
from daemon.wire.problems import ProblemError

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

FOREVER = "public, max-age=31536000, immutable"
"""The address contains the digest of the file, so browsers may cache it forever."""


class Asset(NamedTuple):
    """A static file with content type and digest."""

    body: bytes
    kind: str
    digest: str


class Assets:
    """All static files, held in memory."""

    def __init__(self) -> None:
        """Read the files."""
        self._all: dict[str, Asset] = {}
        own = files("daemon.doors.web").joinpath("assets")
        for file in (*own.iterdir(), *own.joinpath("uplot").iterdir()):
            if kind := KINDS.get(file.name.rpartition(".")[2]):
                body = file.read_bytes()
                self._all[file.name] = Asset(body, kind, sha256(body).hexdigest()[:16])

    def address(self, name: str) -> str:
        """Return the address of a file, with its digest."""
        return f"{UI}/assets/{name}?{self._all[name].digest}"

    def operations(self) -> list[Operation]:
        """Return the operation."""
        return [
            Operation(
                "GET", f"{UI}/assets/{{name}}", Rule.OPEN, self.asset, "A static file.",
                {200: "text/css"}, parameters=(Parameter("name", str, "File name.", "path"),),
            )
        ]  # fmt: skip

    async def asset(self, request: web.Request) -> web.Response:
        """Return a file. Only names known at start are served, so a name cannot be a path."""
        found = self._all.get(request.match_info["name"])
        if found is None:
            raise ProblemError(404, "Not Found", "no such file", "see /ui/")
        return web.Response(
            body=found.body, content_type=found.kind, charset="utf-8",
            headers={"Cache-Control": FOREVER},
        )  # fmt: skip
