"""`/ui/nodes`: nodes and their jobs, free cells and maintenance.

Operators can drain nodes and return them to service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Literal, NamedTuple

from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authentication import UI
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.csrf import form_of
from daemon.doors.http.operations import Operation, Parameter
from daemon.doors.web.page import HTML, PageSet
from daemon.doors.web.pagination import PAGE, ROWS, addresses
from daemon.doors.web.ranges import page_query
from daemon.doors.web.sign_in import is_ours, see
from daemon.doors.web.tables import Column, plain, sort_of, table
from daemon.model.access import Rule, allows
from daemon.wire.cells import CellChain
from daemon.wire.jobs import NodeView

HERE = f"{UI}/nodes"

NAME = Parameter("name", str, "Name of the node.", "path")

NodeState = Literal["", "out", "free", "full"]

JOBS = 10
"""Jobs listed with a node on this page; the API lists more."""

COLUMNS = (
    Column("name", "Node", attrgetter("name")),
    Column("gpus", "GPUs", attrgetter("gpus"), number=True),
    Column("used", "Used", attrgetter("used"), number=True),
    Column("use", "Use"),
    Column("state", "State", lambda node: "out" if node.out else "in service", term="out"),
    Column("jobs", "Jobs", lambda node: len(node.jobs)),
    Column("change", "Change"),
)

WINDOWS = (
    Column("node", "Node"),
    Column("start", "From"),
    Column("end", "To"),
    Column("why", "Why"),
)
"""Columns of the maintenance windows."""

QUERY = (
    Parameter("q", Annotated[str, Meta(max_length=64)], "Part of a node's name.", default=""),
    Parameter("state", NodeState, "Only nodes in this state.", default=""),
    sort_of(COLUMNS),
    PAGE,
)


class FreePieces(NamedTuple):
    """Free pieces of one size."""

    what: str
    gpus: int
    """GPUs of one piece."""
    free: int
    of: int

    @property
    def sum(self) -> int:
        """GPUs of all free pieces of this size."""
        return self.gpus * self.free


class Vacancy(NamedTuple):
    """Free GPUs by the largest free piece that contains them, largest first."""

    name: str
    pieces: list[FreePieces]

    @property
    def free(self) -> int:
        """Total of free GPUs."""
        return sum(piece.sum for piece in self.pieces)


class NodePages(PageSet):
    """The page of nodes, and its actions."""

    menu = ((HERE, "Nodes"),)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", HERE, Rule.VIEW, self.nodes, "Nodes and cells.", {200: HTML},
                parameters=QUERY, refusals=(422,),
            ),
            Operation(
                "POST", f"{HERE}/{{name}}/drain", Rule.OPERATE, self.drain,
                "Drain a node.", {303: None}, None, (NAME,), (404, 409, 422),
            ),
            Operation(
                "POST", f"{HERE}/{{name}}/resume", Rule.OPERATE, self.resume,
                "Return a node to service.", {303: None}, None, (NAME,), (404, 409),
            ),
        ]  # fmt: skip

    async def nodes(self, request: web.Request) -> web.Response:
        """Render the page. O(nodes + live jobs)."""
        params, api = page_query(request, QUERY), self._pages.api
        nodes: list[NodeView] = (await api.ask(request, "GET /v1/nodes")).nodes
        chains = (await api.ask(request, "GET /v1/cells")).chains
        windows = (await api.ask(request, "GET /v1/maintenance")).maintenance
        found = [
            node for node in nodes
            if params["q"].lower() in node.name.lower() and is_in(node, params["state"])
        ]  # fmt: skip
        may = allows(who_asks(request), Rule.OPERATE)
        shown = table(request, COLUMNS if may else COLUMNS[:-1], found, params)
        return await self._pages.page(
            request, "nodes.html", params=params, shown=shown, count=len(found), jobs=JOBS,
            vacancies=[*map(of_chain, chains)] or [of_nodes(nodes)], cells=bool(chains),
            windows=plain(WINDOWS, windows[:ROWS]), may=may, address=addresses(request),
            total={
                "gpus": sum(node.gpus for node in nodes), "used": sum(node.used for node in nodes),
                "out": sum(node.gpus - node.used for node in nodes if node.out),
                "free": sum(node.gpus - node.used for node in nodes if not node.out),
            },
        )  # fmt: skip

    async def drain(self, request: web.Request) -> web.Response:
        """Drain a node through the API, then redirect to the list."""
        fields = await form_of(request)
        body = {"why": fields.get("why", "").strip()}
        await self._pages.api.ask(request, "POST /v1/nodes/{name}/drain", body=body)
        return _back(fields)

    async def resume(self, request: web.Request) -> web.Response:
        """Return a node to service through the API, then redirect to the list."""
        await self._pages.api.ask(request, "POST /v1/nodes/{name}/resume")
        return _back(await form_of(request))


def _back(fields: Mapping[str, str]) -> web.Response:
    to = fields.get("to", "")
    return see(to if is_ours(to) else HERE)


def is_in(node: NodeView, state: NodeState) -> bool:
    """Return whether a node is in a state; "" matches all."""
    if state == "out":
        return bool(node.out)
    if state == "":
        return True
    return not node.out and (node.used < node.gpus) is (state == "free")


def of_chain(chain: CellChain) -> Vacancy:
    """Return the free cells of a chain."""
    levels = chain.levels
    pieces = [FreePieces(level.type, level.gpus, level.free, level.cells) for level in levels]
    return Vacancy(chain.chain, pieces)


def of_nodes(nodes: Sequence[NodeView]) -> Vacancy:
    """Return the free GPUs by node, for clusters without cells."""
    free = Counter(node.gpus - node.used for node in nodes if not node.out)
    sizes = range(max((node.gpus for node in nodes), default=0), 0, -1)
    return Vacancy(
        "", [FreePieces("", size, free[size], len(nodes)) for size in sizes if free[size]]
    )
