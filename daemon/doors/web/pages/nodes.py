"""`/ui/nodes`: who is where, which nodes are out, and how large the pieces are that are free.

Operators drain nodes and have them take jobs again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authorization import who_asks
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter, query_of
from daemon.doors.http.sessions import UI
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, addresses, cut
from daemon.doors.web.sign_in import is_ours, see
from daemon.model.access import Rule, allows
from daemon.wire.cells import CellChain
from daemon.wire.jobs import NodeView

HERE = f"{UI}/nodes"

NAME = Parameter("name", str, "Of the node.", "path")

NodeState = Literal["", "out", "free", "full"]

JOBS = 10
"""Jobs that are named with a node here; the API names more."""

QUERY = (
    Parameter("q", Annotated[str, Meta(max_length=64)], "What a node's name has.", default=""),
    Parameter("state", NodeState, "Only such nodes.", default=""),
    PAGE,
)


class FreePieces(NamedTuple):
    """Free pieces of one size."""

    what: str
    gpus: int
    """Of one."""
    free: int
    of: int

    @property
    def sum(self) -> int:
        """GPUs of all of them."""
        return self.gpus * self.free


class Vacancy(NamedTuple):
    """Free GPUs by the largest free piece that they are in, the largest first."""

    name: str
    pieces: list[FreePieces]

    @property
    def free(self) -> int:
        """GPUs."""
        return sum(piece.sum for piece in self.pieces)


class NodePages(PageSet):
    """The one, and what is done from it."""

    menu = ((HERE, "Nodes"),)

    def operations(self) -> list[Operation]:
        """All of them."""
        return [
            Operation(
                "GET", HERE, Rule.VIEW, self.nodes, "Nodes and cells.", {200: HTML},
                parameters=QUERY, refusals=(422,),
            ),
            Operation(
                "POST", f"{HERE}/{{name}}/drain", Rule.OPERATE, self.drain,
                "Place nothing more on a node.", {303: None}, None, (NAME,), (404, 409, 422),
            ),
            Operation(
                "POST", f"{HERE}/{{name}}/resume", Rule.OPERATE, self.resume,
                "Place jobs on it again.", {303: None}, None, (NAME,), (404, 409),
            ),
        ]  # fmt: skip

    async def nodes(self, request: web.Request) -> web.Response:
        """O(nodes + jobs alive)."""
        asked, api = query_of(request, QUERY), self._pages.api
        nodes: list[NodeView] = (await api.ask(request, "GET /v1/nodes")).nodes
        chains = (await api.ask(request, "GET /v1/cells")).chains
        windows = (await api.ask(request, "GET /v1/maintenance")).maintenance
        found = [
            node for node in nodes
            if asked["q"].lower() in node.name.lower() and is_in(node, asked["state"])
        ]  # fmt: skip
        shown = cut(found, asked["page"])
        return await self._pages.page(
            request, "nodes.html", asked=asked, nodes=shown.rows, count=len(found), jobs=JOBS,
            vacancies=[*map(of_chain, chains)] or [of_nodes(nodes)], cells=bool(chains),
            windows=windows, count_pages=shown.pages, address=addresses(request),
            may=allows(who_asks(request), Rule.OPERATE),
            total={
                "gpus": sum(node.gpus for node in nodes), "used": sum(node.used for node in nodes),
                "out": sum(node.gpus - node.used for node in nodes if node.out),
                "free": sum(node.gpus - node.used for node in nodes if not node.out),
            },
        )  # fmt: skip

    async def drain(self, request: web.Request) -> web.Response:
        """As by the API, with why, and back to the nodes that were shown."""
        fields = await form_of(request)
        body = {"why": fields.get("why", "").strip()}
        await self._pages.api.ask(request, "POST /v1/nodes/{name}/drain", body=body)
        return _back(fields)

    async def resume(self, request: web.Request) -> web.Response:
        """The same."""
        await self._pages.api.ask(request, "POST /v1/nodes/{name}/resume")
        return _back(await form_of(request))


def _back(fields: Mapping[str, str]) -> web.Response:
    to = fields.get("to", "")
    return see(to if is_ours(to) else HERE)


def is_in(node: NodeView, state: NodeState) -> bool:
    """Whether a node is in a state; in any, where none is named."""
    if state == "out":
        return bool(node.out)
    if state == "":
        return True
    return not node.out and (node.used < node.gpus) is (state == "free")


def of_chain(chain: CellChain) -> Vacancy:
    """Of the cells of a chain."""
    levels = chain.levels
    pieces = [FreePieces(level.type, level.gpus, level.free, level.cells) for level in levels]
    return Vacancy(chain.chain, pieces)


def of_nodes(nodes: Sequence[NodeView]) -> Vacancy:
    """Without cells a piece is what is free on a node."""
    free = Counter(node.gpus - node.used for node in nodes if not node.out)
    sizes = range(max((node.gpus for node in nodes), default=0), 0, -1)
    return Vacancy(
        "", [FreePieces("", size, free[size], len(nodes)) for size in sizes if free[size]]
    )
