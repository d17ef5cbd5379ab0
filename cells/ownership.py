"""A cluster and who owns what of it: chains, nodes, quotas and pinned cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cells.asked import Allocation, ResolvedRequest
from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.cluster import Cluster
from cells.layout.requests import CellShortage, Request
from cells.layout.shape import Shape
from cells.layout.spec import CellsError, QuotaSpec, Spec, Top, check_fit, check_top, largest, some
from cells.placement.shortage import shortage, shrink
from cells.snapshot import RemovedNode, all_well, gone_name, renamed, well

MOST_ASKED = 2**14
"""Requests that are kept looked up; pools and widths make fewer, gangs of any widths need not."""


class Ownership:
    """The part of `Cells` that is there without jobs.

    Args:
        spec: The cluster, its pools' quotas and pinned cells.
    """

    def __init__(self, spec: Spec) -> None:
        """Build it. Raises CellsError."""
        self._spec = all_well(spec)  # what was added and removed since is in it, quotas are not
        self._cluster = Cluster(spec)
        self._ground = {name: ChainState(shape, 0) for name, shape in self._cluster.shapes.items()}
        self._why: dict[str, str] = {}
        self._pools: dict[str, None] = {}
        self._pinned: dict[str, str] = {}
        self._asked: dict[Request, ResolvedRequest] = {}
        self._same: dict[tuple[ChainState, int], list[Allocation | None]] = {}
        for top in spec.tops:
            self._cluster.add(top)
            self._ground[top.type].grow(1)
        self._pin_all(spec)
        self._set_first_quotas(spec)
        for top in spec.tops:
            for node in top.nodes:
                if node.bad:
                    self.take_out(node.name, "bad")

    def _pin_all(self, spec: Spec) -> None:
        for i, pinned in enumerate(spec.pinned):
            if pinned.name in self._pinned:
                raise CellsError(f"pinned[{i}].name: {pinned.name!r} is named twice; name it once")
            chain, cell = self._cluster.pinned_cell(f"pinned[{i}]", pinned)
            self._pinned[pinned.name] = chain
            ground = self._ground[chain]
            cells = [cell, *(zone.pin for zone in ground.pins.values() if zone.pin is not None)]
            if len(largest(ground.shape, cells)) < len(cells):
                raise CellsError(f"pinned[{i}]: {pinned.name!r} overlaps another; pin other GPUs")
            ground.pins[pinned.name] = CellZone(ground.shape, pinned.pool, pin=cell)
        for ground in self._ground.values():
            for zone in ground.pins.values():
                if zone.pin is not None:
                    ground.bind(zone, zone.pin)

    def _set_first_quotas(self, spec: Spec) -> None:
        quotas: dict[str, dict[str, dict[str, int]]] = {}
        for quota in spec.quotas:
            types = quotas.setdefault(quota.pool, {}).setdefault(quota.chain, {})
            if quota.type in types:
                raise CellsError(
                    f"quota.{quota.pool}.{quota.chain}.{quota.type}: given twice; give it once"
                )
            types[quota.type] = quota.count
        self.set_quotas(quotas)

    # What a request comes to.

    def width(self, width: int, chain: str = "") -> int:
        """GPUs that a job of a width takes: rounded up to its cells. O(levels)."""
        shape = self._shape(chain)
        return sum(shape.size[level] for level in shape.members(width))

    def narrower(self, width: int, chain: str = "") -> int:
        """The largest width that takes fewer GPUs; 0 if none does. O(levels)."""
        shape = self._shape(chain)
        node = shape.size[shape.node]
        if width > node:
            return (-(-width // node) - 1) * node
        level = shape.level_of(width)
        return shape.size[level - 1] if level else 0

    def could(self, request: Request) -> bool:
        """The pool's whole quota, with nothing running and all nodes well, would hold it.

        O(cells asked · levels). Raises CellsError.
        """
        asked = self.look_up(request)
        shape, pin = asked.ground.shape, asked.zone.pin
        counts = [int(pin.level == level) for level in shape.levels] if pin else asked.zone.quota
        return shape.holds(counts, asked.levels())

    def chains(self) -> list[str]:
        """Names of the chains."""
        return list(self._ground)

    def pins(self, pool: str) -> list[str]:
        """Names of a pool's pinned cells, in the file's order."""
        chains = self._pinned.items()
        return [name for name, chain in chains if self._ground[chain].pins[name].name == pool]

    def owns(self) -> dict[str, dict[str, int]]:
        """GPUs of each pool's quota and pinned cells, by chain."""
        owned: dict[str, dict[str, int]] = {pool: {} for pool in self._pools}
        for chain, ground in self._ground.items():
            for zone in (*ground.zones.values(), *ground.pins.values()):
                if zone.name in owned and (gpus := zone.gpus()):
                    owned[zone.name][chain] = owned[zone.name].get(chain, 0) + gpus
        return owned

    def quotas(self) -> dict[str, dict[str, dict[str, int]]]:
        """All quotas, as `set_quotas` takes them."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for chain, ground in self._ground.items():
            for pool, zone in ground.zones.items():
                kinds = dict(zip(ground.shape.names, zone.quota, strict=True))
                if any(zone.quota):
                    owned = {kind: count for kind, count in kinds.items() if count}
                    found.setdefault(pool, {})[chain] = owned
        return found

    def spec(self) -> Spec:
        """What a cells file would say now, were all nodes well; see `CellsSnapshot`. O(pools)."""
        rows = [
            QuotaSpec(pool, chain, kind, count)
            for pool, chains in self.quotas().items()
            for chain, types in chains.items()
            for kind, count in types.items()
        ]
        return replace(self._spec, quotas=tuple(rows))

    def gone(self) -> list[RemovedNode]:
        """Nodes that were removed."""
        return [
            RemovedNode(chain, cell.number, self._cluster.of[chain].names[cell.number])
            for chain, cells in self._cluster.gone.items()
            for cell in cells
        ]

    # Nodes and quota.

    def nodes(self) -> dict[str, str]:
        """All nodes, each with why it is out, or nothing if it is well; in the file's order."""
        return {node: self._why.get(node, "") for node in self._cluster.nodes}

    def take_out(self, node: str, why: str = "bad") -> None:
        """A node is bad, or drained: jobs on it stay, nothing more is placed on it."""
        chain, number = self._cluster.node(node)
        if node not in self._why:
            self._ground[chain].take_out(number)
        self._why[node] = why

    def bring_back(self, node: str) -> None:
        """A node is well again."""
        chain, number = self._cluster.node(node)
        if self._why.pop(node, None) is not None:
            self._ground[chain].bring_back(number)

    def remove(self, node: str) -> None:
        """A node is gone for good; its name may be used again. Jobs on it stay until they end."""
        chain, number = self._cluster.node(node)
        if node not in self._why:
            self._ground[chain].take_out(number)
        self._why.pop(node, None)
        self._cluster.remove(node)
        self._spec = renamed(self._spec, node, gone_name(chain, number))

    def add(self, top: Top) -> None:
        """A new top cell with its nodes, of a chain that there is. Raises CellsError."""
        chain = self._cluster.chain(top.type)
        check_top("cells", top, self._cluster.shapes[chain], set(self._cluster.nodes))
        self._cluster.add(top)
        ground = self._ground[chain]
        ground.grow(1)
        for (of, width), taken in self._same.items():
            if of is ground:
                new = len(ground.given[ground.shape.level_of(width)]) - len(taken)
                taken.extend([None] * new)
        self._spec = replace(self._spec, tops=(*self._spec.tops, well(top)))
        for node in top.nodes:
            if node.bad:
                self.take_out(node.name, "bad")

    def set_quotas(self, quotas: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        """Set all quotas anew: cells of a type, by pool, chain and type. Raises CellsError.

        Cells bound beyond a pool's new quota leave it, those with fewest jobs first: these jobs run
        on, nothing more is placed there for the pool.
        """
        rows = self._cluster.rows(quotas)
        for chain, ground in self._ground.items():
            asked = {pool: row for (pool, of), row in rows.items() if of == chain}
            pins = [zone.pin for zone in ground.pins.values() if zone.pin is not None]
            taken = largest(ground.shape, [*pins, *self._cluster.gone[chain]])
            check_fit(chain, ground.shape, ground.tops, asked, taken)
        owners = [zone.name for ground in self._ground.values() for zone in ground.pins.values()]
        self._pools = dict.fromkeys([*quotas, *owners])
        self._asked.clear()
        for chain, ground in self._ground.items():
            for pool in dict.fromkeys([*ground.zones, *self._pools]):
                zone = ground.zones.setdefault(pool, CellZone(ground.shape, pool))
                ground.requota(zone, rows.get((pool, chain), [0] * len(ground.unbound)))
                shrink(ground, zone)

    def short(self) -> list[CellShortage]:
        """Cells that cannot be honoured now, chain by chain, the largest first.

        O(bound cells + pools · levels).
        """
        return [each for chain, ground in self._ground.items() for each in shortage(chain, ground)]

    # Requests.

    def look_up(self, request: Request) -> ResolvedRequest:
        """What a request comes to; it stays so for as long as its pool is known.

        O(cells asked · levels) the first time. Raises CellsError.
        """
        asked = self._asked.get(request)
        if asked is None:
            self._check(request)
            chain = self._pinned[request.pin] if request.pin else self._cluster.chain(request.chain)
            ground = self._ground[chain]
            zone = ground.pins[request.pin] if request.pin else ground.zones[request.pool]
            asked = ResolvedRequest(request, ground, self._cluster.of[chain], zone, self._same)
            if len(self._asked) == MOST_ASKED:
                self._asked.clear()
            self._asked[request] = asked
        return asked

    def _check(self, request: Request) -> None:
        """Raise CellsError for what the cluster does not know."""
        if request.pool not in self._pools:
            raise CellsError(f"no pool {request.pool!r}; there are {some(self._pools)}")
        if not request.widths or min(request.widths) < 1:
            asked = f"pool {request.pool!r} asks for widths {list(request.widths)}"
            raise CellsError(f"{asked}; ask for 1 or more")
        if request.gpus is not None and sum(request.widths) > request.gpus:
            asked = f"pool {request.pool!r} asks for {sum(request.widths)} GPUs"
            raise CellsError(f"{asked}, its gang declared {request.gpus}; declare them all")
        if request.pin:
            self._check_pin(request)

    def _check_pin(self, request: Request) -> None:
        if request.pin not in self._pinned:
            raise CellsError(f"no pinned cell {request.pin!r}; the file names them in pinned")
        owner = self._ground[self._pinned[request.pin]].pins[request.pin].name
        if owner != request.pool:
            raise CellsError(f"pinned cell {request.pin!r} is {owner}'s, not {request.pool}'s")

    def _shape(self, chain: str) -> Shape:
        return self._cluster.shapes[self._cluster.chain(chain)]
