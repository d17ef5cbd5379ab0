"""Operations of admins and operators: pools, nodes, maintenance, lending, options of the policy."""

from __future__ import annotations

import re
import secrets
from asyncio import to_thread
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from daemon.answers.front import FrontUpdates
from daemon.doors.http.authorization import demand, who_asks
from daemon.doors.http.operations import Handler, Operation, Parameter, answer, body_of
from daemon.doors.views.resources import (
    node_views,
    pool_view,
    pool_views,
    recalls_view,
    shadow_view,
    turns_view,
    unplaced,
)
from daemon.engine.nodes import CONFIG
from daemon.model.access import Rule
from daemon.model.inputs import (
    CancelMaintenance,
    Command,
    Drain,
    Lending,
    Maintain,
    Resume,
    SetPolicy,
    SetPool,
)
from daemon.model.job import LendingMode
from daemon.model.limits import NO_BUDGET
from daemon.model.outputs import Accepted, Answer, Refused
from daemon.wire.bodies import decoded
from daemon.wire.jobs import (
    Maintenance,
    MaintenanceRequest,
    MaintenanceView,
    NodeList,
    NodeView,
    PoolList,
    PoolPatch,
    PoolView,
    ReasonRequest,
)
from daemon.wire.plan import (
    FrontUpdate,
    FrontUpdateView,
    FrontView,
    LendingState,
    LendingSwitch,
    PolicyChange,
    PolicyView,
)
from daemon.wire.problems import ProblemError, no_pool, refusal
from replay.search.objectives import parse_objective
from sia.limits import UNLIMITED

if TYPE_CHECKING:
    from daemon.service.service import Service

BAD = "the cells file marks this node as bad; from now on jobs are placed on it nevertheless"
NAME = Parameter("name", str, "Name of the pool or node.", "path")
IF_MATCH = Parameter(
    "If-Match",
    Annotated[str, Meta(pattern=r'^"?[0-9]{1,9}"?$')],
    "Expected version (ETag); 409 if the current version differs.",
    "header",
)


_Handled = tuple[Handler, str]
"""Handler and summary of an operation."""


class PoolRoutes:
    """Handlers of pools, nodes, maintenance, lending and the policy."""

    def __init__(self, service: Service, front: Path, updates: FrontUpdates) -> None:
        """Serve the pools and nodes of a service; `front` is where `updates` store it."""
        self._service, self._front_file, self._updates = service, front, updates
        self._update = msgspec.json.Decoder(FrontUpdate)
        self._front = msgspec.json.Decoder(FrontView)
        self._pool = msgspec.json.Decoder(PoolPatch)
        self._why = msgspec.json.Decoder(ReasonRequest)
        self._maintenance = msgspec.json.Decoder(MaintenanceRequest)
        self._lending = msgspec.json.Decoder(LendingSwitch)
        self._policy = msgspec.json.Decoder(PolicyChange)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        pool, node, window = "/v1/pools/{name}", "/v1/nodes/{name}", "/v1/maintenance/{name}"
        changes = (404, 409, 413, 422)
        return [
            Operation("GET", "/v1/pools", Rule.VIEW, self.pools, "List pools.", {200: PoolList}),
            Operation(
                "GET", pool, Rule.VIEW, self.pool,
                "Show a pool.", {200: PoolView}, None, (NAME,), (404,)
            ),
            Operation(
                "PATCH", pool, Rule.ADMIN, self.set_pool,
                "Change a pool, permanently or until a time.",
                {200: PoolView}, PoolPatch, (NAME, IF_MATCH), changes, of="pool",
            ),
            Operation("GET", "/v1/nodes", Rule.VIEW, self.nodes, "List nodes.", {200: NodeList}),
            Operation(
                "POST", f"{node}/drain", Rule.OPERATE, self.drain, "Place no new jobs on a node.",
                {200: NodeView}, ReasonRequest, (NAME,), changes,
            ),
            Operation(
                "POST", f"{node}/resume", Rule.OPERATE, self.resume, "Return a node to service.",
                {200: NodeView}, None, (NAME,), (404, 409),
            ),
            Operation(
                "GET", "/v1/maintenance", Rule.VIEW, self.windows,
                "List maintenance windows.",
                {200: Maintenance},
            ),
            Operation(
                "POST", "/v1/maintenance", Rule.OPERATE, self.maintain,
                "Plan a maintenance window of a node.",
                {201: MaintenanceView, 200: MaintenanceView}, MaintenanceRequest,
                refusals=changes,
            ),
            Operation(
                "DELETE", window, Rule.OPERATE, self.unmaintain, "Cancel or end a window.",
                {204: None}, None, (NAME,), (404, 409),
            ),
            *_setting(
                "/v1/lending", LendingState, (self.lending, "Show whether lending is on."),
                (self.set_lending,
                 "Turn lending on or off, or to shadow mode, in which loans are only simulated."),
                LendingSwitch, (413, 422),
            ),
            *_setting(
                "/v1/policy", PolicyView, (self.policy, "Show the policy and its options."),
                (self.set_policy, "Change the options of the policy, or undo the last change."),
                PolicyChange, (409, 413, 422),
            ),
            Operation(
                "GET", "/v1/policy/front", Rule.OPERATE, self.front,
                "Show the front that sia wfq update has stored.", {200: FrontView},
                refusals=(404,),
            ),
            Operation(
                "GET", "/v1/policy/front/update", Rule.OPERATE, self.update,
                "Show the progress of the update of the front.", {200: FrontUpdateView},
            ),
            Operation(
                "POST", "/v1/policy/front/update", Rule.OPERATE, self.start_update,
                "Search settings of wfq on the daemon's history, in a process of its own.",
                {202: FrontUpdateView}, FrontUpdate, refusals=(409, 413, 422),
            ),
            Operation(
                "DELETE", "/v1/policy/front/update", Rule.OPERATE, self.cancel_update,
                "Stop the update of the front. The same update continues where it stopped.",
                {200: FrontUpdateView},
            ),
        ]  # fmt: skip

    async def pools(self, request: web.Request) -> web.Response:
        """List pools by name."""
        await self._service.settled()
        return answer(PoolList(pool_views(self._service.engine, self._service.clock.now())))

    async def pool(self, request: web.Request) -> web.Response:
        """Return one pool, with its version as ETag."""
        name = request.match_info["name"]
        if name not in self._service.book.pools:
            raise no_pool(name, self._service.book.pools)
        return await self._shown(name)

    async def _shown(self, name: str) -> web.Response:
        await self._service.settled()
        service = self._service
        widths = unplaced(service.book).get(name, ())
        view = pool_view(service.engine, name, service.clock.now(), widths)
        return answer(view, headers={"ETag": f'"{view.version}"'})

    async def set_pool(self, request: web.Request) -> web.Response:
        """Change a pool, if its version is the expected one."""
        patch = decoded(await body_of(request), self._pool, PoolPatch)
        name = request.match_info["name"]
        taken = any(value is not None for value in (patch.quota, patch.cells, patch.weight))
        slowed = patch.slowed_budget_pct, patch.slowed_budget_minutes
        if taken or any(value is not UNSET for value in slowed):
            demand(request, Rule.OPERATE)  # these changes affect other pools
        await self._do(
            request,
            SetPool(
                name, patch.quota, patch.cells, patch.state, _limit(patch.lend_limit),
                _limit(patch.borrow_limit), patch.weight, _version(request), patch.until,
                who_asks(request).name, _budget(patch.lend_budget_hours),
                *(_budget(value) for value in slowed),
            ),
        )  # fmt: skip
        return await self._shown(name)

    async def nodes(self, request: web.Request) -> web.Response:
        """List nodes."""
        await self._service.settled()
        return answer(NodeList(node_views(self._service.book, who_asks(request))))

    async def _node(self, request: web.Request, name: str, note: str = "") -> web.Response:
        await self._service.settled()
        nodes = node_views(self._service.book, who_asks(request))
        view = next(node for node in nodes if node.name == name)
        return answer(replace(view, note=note))

    async def drain(self, request: web.Request) -> web.Response:
        """Drain a node."""
        body = await body_of(request)
        why = decoded(body, self._why, ReasonRequest).why if body else ""
        name = request.match_info["name"]
        await self._do(request, Drain(name, why, who_asks(request).name))
        return await self._node(request, name)

    async def resume(self, request: web.Request) -> web.Response:
        """Return a node to service."""
        name = request.match_info["name"]
        node = self._service.book.nodes.get(name)
        bad = node is not None and [*node.reasons] == [CONFIG]
        await self._do(request, Resume(name, who_asks(request).name))
        return await self._node(request, name, BAD if bad else "")

    async def windows(self, request: web.Request) -> web.Response:
        """List maintenance windows by start."""
        await self._service.settled()
        windows = sorted(self._service.book.windows.values(), key=lambda w: (w.start, w.id))
        views = [MaintenanceView(w.id, w.node, w.start, w.end, w.why, w.begun) for w in windows]
        return answer(Maintenance(views))

    async def maintain(self, request: web.Request) -> web.Response:
        """Plan a maintenance window."""
        payload = decoded(await body_of(request), self._maintenance, MaintenanceRequest)
        name = payload.id or "m" + secrets.token_hex(4)
        by = who_asks(request).name
        command = Maintain(name, payload.node, payload.start, payload.end, payload.why, by)
        done = await self._do(request, command)
        view = MaintenanceView(
            name, payload.node, payload.start, payload.end, payload.why, begun=False
        )
        return answer(view, 201 if done.new else 200)

    async def unmaintain(self, request: web.Request) -> web.Response:
        """Cancel or end a maintenance window."""
        by = who_asks(request).name
        await self._do(request, CancelMaintenance(request.match_info["name"], by))
        return web.Response(status=204)

    async def lending(self, request: web.Request) -> web.Response:
        """Return the lending mode, the result of shadow lending, and gains and costs of stops."""
        await self._service.settled()
        book, who = self._service.book, who_asks(request)
        shadow = None if book.shadow is None else shadow_view(book.shadow, who)
        recalls = recalls_view(book.turns.values())
        seen = sorted(name for name in book.turns if name in book.pools and who.sees(name))
        turns = [turns_view(name, book.turns[name]) for name in seen]
        return answer(LendingState(book.lending, book.mode, shadow, recalls, turns))

    async def set_lending(self, request: web.Request) -> web.Response:
        """Set the lending mode."""
        payload = decoded(await body_of(request), self._lending, LendingSwitch)
        if (payload.on is None) is (payload.mode is None):
            mend = 'send {"mode": "on"}, "shadow" or "off"; or {"on": true} or false'
            raise ProblemError(422, "invalid", "give exactly one of mode and on", mend)
        on = payload.mode is LendingMode.ON if payload.on is None else payload.on
        shadow = payload.mode is LendingMode.SHADOW
        await self._do(request, Lending(on, who_asks(request).name, shadow))
        return await self.lending(request)

    async def policy(self, request: web.Request) -> web.Response:
        """Return the policy in force, the configured policy, and the one before the last change."""
        await self._service.settled()
        setup = self._service.book.setup
        configured = setup.configured or setup.policy
        return answer(PolicyView(setup.policy, configured, setup.before or None))

    async def set_policy(self, request: web.Request) -> web.Response:
        """Change the options of the policy."""
        payload = decoded(await body_of(request), self._policy, PolicyChange)
        if bool(payload.policy) is payload.undo:
            mend = 'send {"policy": "wfq:…"}, or {"undo": true}'
            raise ProblemError(422, "invalid", "give exactly one of policy and undo", mend)
        await self._do(request, SetPolicy(payload.policy, who_asks(request).name))
        return await self.policy(request)

    async def front(self, request: web.Request) -> web.Response:
        """Return the stored front, and whether it fits this cluster."""
        await self._service.settled()
        try:
            found = self._front.decode(await to_thread(self._front_file.read_bytes))
        except (OSError, msgspec.MsgspecError):
            mend = "run sia wfq update on this machine, as the user of the daemon"
            raise ProblemError(404, "not-found", "no front is stored", mend) from None
        quotas = {name: pool.quota for name, pool in self._service.engine.core.state.pools.items()}
        found.problem = _misfit(found, quotas)
        return answer(found)

    async def update(self, _: web.Request) -> web.Response:
        """Return the progress of the update of the front."""
        return answer(self._update_view())

    async def start_update(self, request: web.Request) -> web.Response:
        """Begin an update of the front."""
        asked = decoded(await body_of(request), self._update, FrontUpdate)
        if asked.pool is not None and asked.pool not in self._service.book.pools:
            raise no_pool(asked.pool, self._service.book.pools)
        for each in asked.objectives:
            try:
                parse_objective(each)
            except ValueError as error:
                raise ProblemError(422, "invalid", str(error), "change objectives") from None
        if self._updates.running:
            mend = "wait for it, or cancel it (DELETE /v1/policy/front/update)"
            raise ProblemError(409, "update", "an update of the front is running", mend)
        if not self._updates.possible:
            mend = "run sia wfq update --config FILE on this machine, as the user of the daemon"
            raise ProblemError(409, "update", "the journal is not sia.db of the state folder", mend)
        self._updates.start(_options(asked))
        return answer(self._update_view(), 202)

    async def cancel_update(self, _: web.Request) -> web.Response:
        """Stop the update of the front, if one runs."""
        await self._updates.cancel()
        return answer(self._update_view())

    def _update_view(self) -> FrontUpdateView:
        updates = self._updates
        return FrontUpdateView(updates.running, updates.began, updates.said)

    async def _do(self, request: web.Request, command: Command) -> Accepted:
        """Submit a command. Raises ProblemError if it is refused."""
        found: Answer
        (found,) = await self._service.submit([command], request.remote or "")
        if isinstance(found, Refused):
            raise refusal(found)
        return found


def _setting(
    path: str, view: type, show: _Handled, change: _Handled, body: type, refusals: tuple[int, ...]
) -> Iterator[Operation]:
    """Yield the operations that show and change a setting of the cluster."""
    yield Operation("GET", path, Rule.VIEW, *show, {200: view})
    yield Operation("PUT", path, Rule.OPERATE, *change, {200: view}, body, refusals=refusals)


def _options(asked: FrontUpdate) -> list[str]:
    """Return the options of `sia wfq update`."""
    options = [f"--simulations={asked.simulations}", f"--arrivals={asked.arrivals}"]
    options += (f"--objective={each}" for each in asked.objectives)
    options += [] if asked.pool is None else [f"--pool={asked.pool}"]
    options += [] if asked.load is None else [f"--load={asked.load!r}"]
    return options


def _misfit(front: FrontView, quotas: Mapping[str, int]) -> str:
    """Return why a front does not fit this cluster; "" if it fits."""
    if front.pool and front.pool not in quotas:
        return f"it was made for pool {front.pool}, which this cluster does not have; update it"
    own = {quotas[front.pool]} if front.pool else set(quotas.values())
    if front.gpus not in own:
        return f"it was made for {front.gpus} GPUs, but the pool has another quota; update it"
    return ""


def _limit(value: int | UnsetType | None) -> int | None:
    """Convert a limit for the engine: None leaves it unchanged, UNLIMITED removes it."""
    if isinstance(value, UnsetType):
        return None
    return UNLIMITED if value is None else value


def _budget(value: float | UnsetType | None) -> float | None:
    """Convert a budget for the engine: None leaves it unchanged, NO_BUDGET removes it."""
    if isinstance(value, UnsetType):
        return None
    return NO_BUDGET if value is None else value


def _version(request: web.Request) -> int | None:
    """Return the version in If-Match, or None without the header. Raises ProblemError."""
    value = request.headers.get("If-Match")
    if value is None:
        return None
    found = re.fullmatch(r'"?([0-9]{1,9})"?', value)
    if found is None:
        raise ProblemError(
            422, "invalid", f"If-Match is {value[:40]!r}", "send the ETag of GET /v1/pools/NAME"
        )
    return int(found[1])
