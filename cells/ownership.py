"""What pools own of a cluster: chains, nodes, quotas and pinned cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.cluster import Cluster
from cells.layout.requests import CellShortage, Request
from cells.layout.shape import Shape
from cells.layout.spec import (
    CellsError,
    QuotaSpec,
    Spec,
    Top,
    check_fit,
    check_top,
    largest,
    shortened,
)
from cells.placement.shortage import shortage, shrink
from cells.resolved import Allocation, ResolvedRequest
from cells.snapshot import RemovedNode, gone_name, renamed, without_bad, without_bad_nodes

MAX_CACHED_REQUESTS = 2**14
"""Size of the cache of resolved requests. Gangs of arbitrary widths could make it grow forever."""


class Ownership:
    """The part of `Cells` that does not depend on jobs.

    Args:
        spec: The cluster, the pools' quotas and the pinned cells.
    """

    def __init__(self, spec: Spec) -> None:
        """Build chains, pinned cells and quotas. Raises CellsError."""
        self._spec = without_bad_nodes(spec)  # follows added and removed nodes, but not quotas
        self._cluster = Cluster(spec)
        self._states = {name: ChainState(shape, 0) for name, shape in self._cluster.shapes.items()}
        self._out_reasons: dict[str, str] = {}
        self._pools: dict[str, None] = {}
        self._pinned: dict[str, str] = {}
        self._resolved: dict[Request, ResolvedRequest] = {}
        self._shared: dict[tuple[ChainState, int], list[Allocation | None]] = {}
        for top in spec.tops:
            self._cluster.add(top)
            self._states[top.type].grow(1)
        self._pin_all(spec)
        self._set_first_quotas(spec)
        for top in spec.tops:
            for node in top.nodes:
                if node.bad:
                    self.take_out(node.name, "bad")

    def _pin_all(self, spec: Spec) -> None:
        for i, pinned in enumerate(spec.pinned):
            if pinned.name in self._pinned:
                raise CellsError(f"pinned[{i}].name: duplicate name {pinned.name!r}; use another")
            chain, cell = self._cluster.pinned_cell(f"pinned[{i}]", pinned)
            self._pinned[pinned.name] = chain
            state = self._states[chain]
            cells = [cell, *(zone.pin for zone in state.pins.values() if zone.pin is not None)]
            if len(largest(state.shape, cells)) < len(cells):
                raise CellsError(f"pinned[{i}]: {pinned.name!r} overlaps another; pin other GPUs")
            state.pins[pinned.name] = CellZone(state.shape, pinned.pool, pin=cell)
        for state in self._states.values():
            for zone in state.pins.values():
                if zone.pin is not None:
                    state.bind(zone, zone.pin)

    def _set_first_quotas(self, spec: Spec) -> None:
        quotas: dict[str, dict[str, dict[str, int]]] = {}
        for quota in spec.quotas:
            types = quotas.setdefault(quota.pool, {}).setdefault(quota.chain, {})
            if quota.type in types:
                raise CellsError(
                    f"quota.{quota.pool}.{quota.chain}.{quota.type}: set twice; set it once"
                )
            types[quota.type] = quota.count
        self.set_quotas(quotas)

    # Widths, names and owners.

    def width(self, width: int, chain: str = "") -> int:
        """Return the GPUs that a job of a width takes, rounded up to cells. O(levels)."""
        shape = self._shape(chain)
        return sum(shape.size[level] for level in shape.members(width))

    def narrower(self, width: int, chain: str = "") -> int:
        """Return the largest width that takes fewer GPUs than this one, or 0. O(levels)."""
        shape = self._shape(chain)
        node = shape.size[shape.node]
        if width > node:
            return (-(-width // node) - 1) * node
        level = shape.level_of(width)
        return shape.size[level - 1] if level else 0

    def fits_quota(self, request: Request) -> bool:
        """Return whether the pool's whole quota would hold a request on an idle, healthy cluster.

        O(cells requested · levels). Raises CellsError.
        """
        resolved = self.resolve(request)
        shape, pin = resolved.state.shape, resolved.zone.pin
        counts = [int(pin.level == level) for level in shape.levels] if pin else resolved.zone.quota
        return shape.can_hold(counts, resolved.levels())

    def chains(self) -> list[str]:
        """Return the names of the chains."""
        return list(self._states)

    def pins(self, pool: str) -> list[str]:
        """Return the names of a pool's pinned cells, in the order of the file."""
        chains = self._pinned.items()
        return [name for name, chain in chains if self._states[chain].pins[name].name == pool]

    def owned_gpus(self) -> dict[str, dict[str, int]]:
        """Return the GPUs of each pool's quota and pinned cells, by chain."""
        owned: dict[str, dict[str, int]] = {pool: {} for pool in self._pools}
        for chain, state in self._states.items():
            for zone in (*state.zones.values(), *state.pins.values()):
                if zone.name in owned and (gpus := zone.gpus()):
                    owned[zone.name][chain] = owned[zone.name].get(chain, 0) + gpus
        return owned

    def quotas(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return all quotas in the form that `set_quotas` takes."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for chain, state in self._states.items():
            for pool, zone in state.zones.items():
                kinds = dict(zip(state.shape.names, zone.quota, strict=True))
                if any(zone.quota):
                    owned = {kind: count for kind, count in kinds.items() if count}
                    found.setdefault(pool, {})[chain] = owned
        return found

    def spec(self) -> Spec:
        """Return the current specification with healthy nodes; see `CellsSnapshot`. O(pools)."""
        rows = [
            QuotaSpec(pool, chain, kind, count)
            for pool, chains in self.quotas().items()
            for chain, types in chains.items()
            for kind, count in types.items()
        ]
        return replace(self._spec, quotas=tuple(rows))

    def gone(self) -> list[RemovedNode]:
        """Return the removed nodes."""
        return [
            RemovedNode(chain, cell.number, self._cluster.nodes_of[chain].names[cell.number])
            for chain, cells in self._cluster.gone.items()
            for cell in cells
        ]

    # Nodes and quota.

    def nodes(self) -> dict[str, str]:
        """Map each node to the reason why it is out, "" if healthy, in the file's order."""
        return {node: self._out_reasons.get(node, "") for node in self._cluster.nodes}

    def take_out(self, node: str, why: str = "bad") -> None:
        """Mark a node as bad or drained. Jobs on it stay; no further job is placed on it."""
        chain, number = self._cluster.node(node)
        if node not in self._out_reasons:
            self._states[chain].take_out(number)
        self._out_reasons[node] = why

    def bring_back(self, node: str) -> None:
        """Mark a node as healthy again."""
        chain, number = self._cluster.node(node)
        if self._out_reasons.pop(node, None) is not None:
            self._states[chain].bring_back(number)

    def remove(self, node: str) -> None:
        """Remove a node for good. Its name may be used again; jobs on it stay until they end."""
        chain, number = self._cluster.node(node)
        if node not in self._out_reasons:
            self._states[chain].take_out(number)
        self._out_reasons.pop(node, None)
        self._cluster.remove(node)
        self._spec = renamed(self._spec, node, gone_name(chain, number))

    def add(self, top: Top) -> None:
        """Add a top cell with its nodes to an existing chain. Raises CellsError."""
        chain = self._cluster.chain(top.type)
        check_top("cells", top, self._cluster.shapes[chain], set(self._cluster.nodes))
        self._cluster.add(top)
        state = self._states[chain]
        state.grow(1)
        for (of, width), taken in self._shared.items():
            if of is state:
                new = len(state.given[state.shape.level_of(width)]) - len(taken)
                taken.extend([None] * new)
        self._spec = replace(self._spec, tops=(*self._spec.tops, without_bad(top)))
        for node in top.nodes:
            if node.bad:
                self.take_out(node.name, "bad")

    def set_quotas(self, quotas: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        """Replace all quotas: numbers of cells by pool, chain and cell type. Raises CellsError.

        Cells bound beyond a pool's new quota leave the pool, those with the fewest jobs first.
        Their jobs continue, and no further job of the pool is placed there.
        """
        rows = self._cluster.rows(quotas)
        for chain, state in self._states.items():
            asked = {pool: row for (pool, of), row in rows.items() if of == chain}
            pins = [zone.pin for zone in state.pins.values() if zone.pin is not None]
            taken = largest(state.shape, [*pins, *self._cluster.gone[chain]])
            check_fit(chain, state.shape, state.tops, asked, taken)
        owners = [zone.name for state in self._states.values() for zone in state.pins.values()]
        self._pools = dict.fromkeys([*quotas, *owners])
        self._resolved.clear()
        for chain, state in self._states.items():
            for pool in dict.fromkeys([*state.zones, *self._pools]):
                zone = state.zones.setdefault(pool, CellZone(state.shape, pool))
                state.set_quota(zone, rows.get((pool, chain), [0] * len(state.unbound)))
                shrink(state, zone)

    def shortages(self) -> list[CellShortage]:
        """Return the cells that cannot be honoured now, by chain, the largest cells first.

        O(bound cells + pools · levels).
        """
        return [each for chain, state in self._states.items() for each in shortage(chain, state)]

    # Requests.

    def resolve(self, request: Request) -> ResolvedRequest:
        """Resolve a request to its chain and zone. The result is valid until quotas change.

        O(cells requested · levels) the first time. Raises CellsError.
        """
        resolved = self._resolved.get(request)
        if resolved is None:
            self._check(request)
            chain = self._pinned[request.pin] if request.pin else self._cluster.chain(request.chain)
            state = self._states[chain]
            zone = state.pins[request.pin] if request.pin else state.zones[request.pool]
            resolved = ResolvedRequest(
                request, state, self._cluster.nodes_of[chain], zone, self._shared
            )
            if len(self._resolved) == MAX_CACHED_REQUESTS:
                self._resolved.clear()
            self._resolved[request] = resolved
        return resolved

    def _check(self, request: Request) -> None:
        """Raise CellsError if a request names something unknown or has invalid widths."""
        if request.pool not in self._pools:
            raise CellsError(f"no pool {request.pool!r}; use one of {shortened(self._pools)}")
        if not request.widths or min(request.widths) < 1:
            asked = f"pool {request.pool!r} requests widths {list(request.widths)}"
            raise CellsError(f"{asked}; each must be at least 1")
        if request.gpus is not None and sum(request.widths) > request.gpus:
            asked = f"pool {request.pool!r} requests {sum(request.widths)} GPUs"
            raise CellsError(f"{asked}, but its gang declared {request.gpus}; declare all of them")
        if request.pin:
            self._check_pin(request)

    def _check_pin(self, request: Request) -> None:
        if request.pin not in self._pinned:
            raise CellsError(f"no pinned cell {request.pin!r}; use a name listed under pinned")
        owner = self._states[self._pinned[request.pin]].pins[request.pin].name
        if owner != request.pool:
            raise CellsError(
                f"pinned cell {request.pin!r} belongs to pool {owner}, not {request.pool}"
            )

    def _shape(self, chain: str) -> Shape:
        return self._cluster.shapes[self._cluster.chain(chain)]
