"""Cells of a cluster: who has which GPUs, pool by pool, as if each were alone (HiveD; SIA §5.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

from cells.answers import Blocked, Placement, Reason, Request, Short
from cells.check import check_ground
from cells.cluster import Cluster, some
from cells.gangs import Find, all_of, best_rack, members
from cells.ground import Ground
from cells.holds import Holds
from cells.lending import lend, lend_rest
from cells.placing import claim, fits, place
from cells.shape import Cell
from cells.shortage import shortage, shrink
from cells.spec import (
    CellsError,
    Spec,
    Top,
    check_fit,
    check_top,
    largest,
)
from cells.zones import Zone


@dataclass(frozen=True, slots=True)
class _Taken:
    """Cells of one job, and the GPUs of each member."""

    chain: str
    members: tuple[tuple[int, tuple[Cell, ...]], ...]
    spare: bool
    reserved: bool = False

    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.members for cell in cells]


class Cells:
    """The cells of a cluster.

    Jobs are named by whoever asks. Dedicated jobs use their pool's quota: a request that finds its
    cells in the pool's unused quota (those bound and those not) is in quota. It either gets them at
    once, or spare jobs or lost nodes alone are in its way. Spare jobs use vacant cells anywhere,
    but none on a node with a dedicated job (except rests, see `lend_rests`) or in a pinned cell.

    Errors change nothing. All choices are deterministic.

    Args:
        spec: The cluster, its pools' quotas and pinned cells.
        lend_rests: Spare jobs of one GPU may use what rounding widths up leaves over.
    """

    def __init__(self, spec: Spec, *, lend_rests: bool = False) -> None:
        """Build it. Raises CellsError."""
        self._lend_rests = lend_rests
        self._cluster = Cluster(spec)
        self._ground = {name: Ground(shape, 0) for name, shape in self._cluster.shapes.items()}
        self._why: dict[str, str] = {}
        self._jobs: dict[str, _Taken] = {}
        self._claims: dict[str, None] = {}
        self._pinned: dict[str, tuple[str, str, Cell]] = {}
        self._pools: dict[str, None] = {}
        for top in spec.tops:
            self._cluster.add(top)
            self._ground[top.type].grow(1)
        self._pin_all(spec)
        self._set_first_quotas(spec)
        for top in spec.tops:
            for node in top.nodes:
                if node.bad:
                    self.take_out(node.name, "bad")

    # The start.

    def _pin_all(self, spec: Spec) -> None:
        for i, pinned in enumerate(spec.pinned):
            if pinned.name in self._pinned:
                raise CellsError(f"pinned[{i}].name: {pinned.name!r} is named twice; name it once")
            chain, cell = self._cluster.pinned_cell(f"pinned[{i}]", pinned)
            self._pinned[pinned.name] = (pinned.pool, chain, cell)
            self._pools[pinned.pool] = None
            same = [c for _, other, c in self._pinned.values() if other == chain]
            if len(largest(self._cluster.shapes[chain], same)) < len(same):
                raise CellsError(f"pinned[{i}]: {pinned.name!r} overlaps another; pin other GPUs")
        for name, (pool, chain, cell) in self._pinned.items():
            ground = self._ground[chain]
            ground.pins[name] = Zone(ground.shape, pool, pin=cell)
            ground.bind(ground.pins[name], cell)

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

    # Dedicated jobs.

    def allocate(self, job: str, request: Request) -> Placement | None:
        """Give a dedicated job its cells at once, or None. O(cells asked · levels · log n).

        `blockers` says why not.

        Raises CellsError for what the cluster does not know, or a job that has cells already.
        """
        chain, zone = self._asked(job, request)
        ground = self._ground[chain]
        near = self._rack(ground, zone, request)
        found = self._try(ground, request, near, partial(self._place, ground, zone, job))
        if found is None:
            return None
        return self._keep(job, _Taken(chain, found, spare=False))

    def claim(self, job: str, request: Request) -> Placement | None:
        """As `allocate`, but spare jobs may still run in its cells: those least lent are chosen.

        The job may start when `ready`; no spare job gets into its cells from now on, so that it
        waits only for those of `waits_for` to end. O(cells of a level).
        """
        return self._claim(job, request, reserved=False)

    def reserve(self, name: str, request: Request) -> Placement | None:
        """Allocate dedicated cells to no job (§5.5); `free` releases them.

        While spare jobs are in them (not `ready`), all requests for spare cells fail.
        """
        return self._claim(name, request, reserved=True)

    def _claim(self, job: str, request: Request, *, reserved: bool) -> Placement | None:
        chain, zone = self._asked(job, request)
        ground = self._ground[chain]
        near = self._rack(ground, zone, request)
        found = self._try(ground, request, near, partial(self._place, ground, zone, job))
        if found is None:
            found = self._try(ground, request, None, partial(self._claim_cell, ground, zone, job))
        if found is None:
            return None
        placement = self._keep(job, _Taken(chain, found, spare=False, reserved=reserved))
        if self.waits_for(job):
            self._claims[job] = None
        return placement

    def ready(self, job: str) -> bool:
        """No spare job runs in the cells of this dedicated job or reservation. O(its cells)."""
        return not self.waits_for(job)

    def waits_for(self, job: str) -> tuple[str, ...]:
        """Spare jobs in a dedicated job's cells, each once (but for those in its rests)."""
        taken = self._taken(job)
        ground = self._ground[taken.chain]
        jobs = [
            ground.lent[spare]
            for width, cells in taken.members
            for spare in _in_cells(ground, cells)
            if spare not in ground.rests
        ]
        return tuple(dict.fromkeys(jobs))

    def blockers(self, request: Request) -> Blocked | None:
        """Why a request would have to wait, with the spare jobs in its way; None if it need not."""
        job = "\0asked"
        if self.allocate(job, request) is None:
            chain, zone = self._asked(job, request)
            return self._why_blocked(self._ground[chain], zone, job, request)
        self.free(job)
        return None

    # Spare jobs.

    def holds(self, chain: str = "") -> Holds:
        """Numbers to hold back in one window, for `lend`: see `cells.holds`."""
        return Holds(self._ground[self._cluster.chain(chain)])

    def lend(self, job: str, request: Request, holds: Sequence[Holds] = ()) -> Placement | None:
        """Give a spare job cells that leave all `holds` kept, or None.

        None, too, while a reservation is not ready. Nothing is preempted for it. Raises CellsError.
        """
        self._known(job, request)
        chain = self._cluster.chain(request.chain)
        ground = self._ground[chain]
        if any(self._taken(name).reserved and not self.ready(name) for name in self._claims):
            return None
        near = best_rack(ground, None, 1) if _nodes_asked(ground, request) > 1 else None
        found = self._try(
            ground, request, near, partial(self._lend, ground, job, holds), spare=True
        )
        if found is None:
            return None
        return self._keep(job, _Taken(chain, found, spare=True))

    # All jobs.

    def free(self, job: str) -> None:
        """Take back a job's cells or a reservation. O(its cells · levels · log n)."""
        taken = self._taken(job)
        self._release(self._ground[taken.chain], taken.cells(), spare=taken.spare)
        del self._jobs[job]
        self._claims = {name: None for name in self._claims if name != job and not self.ready(name)}

    def placement(self, job: str) -> Placement:
        """Where a job is."""
        taken = self._taken(job)
        return Placement(self._cluster.place(taken.chain, taken.members))

    def jobs(self) -> dict[str, bool]:
        """All jobs with cells, and whether they are spare; reservations are not."""
        return {job: taken.spare for job, taken in self._jobs.items() if not taken.reserved}

    # What a request comes to.

    def width(self, width: int, chain: str = "") -> int:
        """GPUs that a job of a width takes: rounded up to its cells. O(levels)."""
        shape = self._cluster.shapes[self._cluster.chain(chain)]
        return sum(shape.size[level] for level in members(shape, width))

    def narrower(self, width: int, chain: str = "") -> int:
        """The largest width that takes fewer GPUs; 0 if none does. O(levels)."""
        shape = self._cluster.shapes[self._cluster.chain(chain)]
        node = shape.size[shape.node]
        if width > node:
            return (-(-width // node) - 1) * node
        level = shape.level_of(width)
        return shape.size[level - 1] if level else 0

    def could(self, request: Request) -> bool:
        """The pool's whole quota, with nothing running and all nodes well, would hold it.

        O(cells asked · levels). Raises CellsError.
        """
        chain, zone = self._asked("\0asked", request)
        shape = self._ground[chain].shape
        levels = [level for width in request.widths for level in members(shape, width)]
        pinned = [int(zone.pin is not None and zone.pin.level == level) for level in shape.levels]
        return shape.holds(pinned if zone.pin else zone.quota, levels)

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

    def add(self, top: Top) -> None:
        """A new top cell with its nodes, of a chain that there is. Raises CellsError."""
        chain = self._cluster.chain(top.type)
        check_top("cells", top, self._cluster.shapes[chain], set(self._cluster.nodes))
        self._cluster.add(top)
        self._ground[chain].grow(1)
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
            mine = [row for (_, of), row in rows.items() if of == chain]
            total = [sum(column) for column in zip(*mine, strict=True)] or [0] * len(ground.unbound)
            pins = [cell for _, of, cell in self._pinned.values() if of == chain]
            taken = largest(ground.shape, [*pins, *self._cluster.gone[chain]])
            check_fit(chain, ground.shape, ground.tops, total, taken)
        self._pools = dict.fromkeys([*quotas, *(pool for pool, _, _ in self._pinned.values())])
        for chain, ground in self._ground.items():
            for pool in dict.fromkeys([*ground.zones, *self._pools]):
                zone = ground.zones.setdefault(pool, Zone(ground.shape, pool))
                ground.requota(zone, rows.get((pool, chain), [0] * len(ground.unbound)))
                shrink(ground, zone)

    def short(self) -> list[Short]:
        """Cells that cannot be honoured now, chain by chain, the largest first.

        O(bound cells + pools · levels).
        """
        return [each for chain, ground in self._ground.items() for each in shortage(chain, ground)]

    # The whole.

    def copy(self) -> Cells:
        """One of its own, for what-if questions; its `Holds` are made anew. O(cells)."""
        other = copy(self)
        for name in ("_cluster", "_why", "_jobs", "_claims", "_pinned", "_pools"):
            setattr(other, name, getattr(self, name).copy())
        other._ground = {chain: ground.copy() for chain, ground in self._ground.items()}  # noqa: SLF001
        return other

    def check(self) -> None:
        """Assert every invariant. O(cells)."""
        for chain, ground in self._ground.items():
            check_ground(ground)
            jobs = {job: taken for job, taken in self._jobs.items() if taken.chain == chain}
            held = {c: j for j, t in jobs.items() if not t.spare for c in t.cells()}
            lent = {c: j for j, t in jobs.items() if t.spare for c in t.cells()}
            assert held == ground.dedicated, chain
            assert lent == ground.lent, chain
        for job in self._jobs:
            assert job in self._claims or self._taken(job).spare or self.ready(job), job

    # Inside.

    def _asked(self, job: str, request: Request) -> tuple[str, Zone]:
        """The chain and zone of a dedicated request."""
        self._known(job, request)
        if request.pin:
            if request.pin not in self._pinned:
                raise CellsError(f"no pinned cell {request.pin!r}; the file names them in pinned")
            owner, chain, _ = self._pinned[request.pin]
            if owner != request.pool:
                raise CellsError(f"pinned cell {request.pin!r} is {owner}'s, not {request.pool}'s")
            return chain, self._ground[chain].pins[request.pin]
        chain = self._cluster.chain(request.chain)
        return chain, self._ground[chain].zones[request.pool]

    def _known(self, job: str, request: Request) -> None:
        if job in self._jobs:
            raise CellsError(f"{job!r} has cells already; free them first")
        if request.pool not in self._pools:
            raise CellsError(f"no pool {request.pool!r}; there are {some(self._pools)}")
        if not request.widths or min(request.widths) < 1:
            raise CellsError(f"{job!r} asks for widths {list(request.widths)}; ask for 1 or more")
        if request.gpus is not None and sum(request.widths) > request.gpus:
            raise CellsError(
                f"{job!r} asks for {sum(request.widths)} GPUs, its gang declared {request.gpus}; "
                "declare them all"
            )

    def _taken(self, job: str) -> _Taken:
        if job not in self._jobs:
            raise CellsError(f"{job!r} has no cells")
        return self._jobs[job]

    def _keep(self, job: str, taken: _Taken) -> Placement:
        self._jobs[job] = taken
        if self._lend_rests and not taken.spare and not taken.reserved:
            _add_rests(self._ground[taken.chain], taken)
        return self.placement(job)

    def _rack(self, ground: Ground, zone: Zone, request: Request) -> Cell | None:
        nodes = _nodes_asked(ground, request)
        return best_rack(ground, zone, nodes) if nodes > 1 else None

    def _try(
        self,
        ground: Ground,
        request: Request,
        near: Cell | None,
        find: Find,
        *,
        spare: bool = False,
    ) -> tuple[tuple[int, tuple[Cell, ...]], ...] | None:
        """All cells of a gang, or none of them."""
        placed: list[Cell] = []

        def recorded(level: int, beside: Cell | None) -> Cell | None:
            cell = find(level, beside or near)
            if cell is not None:
                placed.append(cell)
            return cell

        found = all_of(ground, request.widths, recorded)
        if found is None:
            self._release(ground, placed, spare=spare)
            return None
        return tuple((w, tuple(cells)) for w, cells in zip(request.widths, found, strict=True))

    def _place(
        self, ground: Ground, zone: Zone, job: str, level: int, near: Cell | None
    ) -> Cell | None:
        return place(ground, zone, level, job, near)

    def _claim_cell(
        self, ground: Ground, zone: Zone, job: str, level: int, near: Cell | None
    ) -> Cell | None:
        return place(ground, zone, level, job, near) or claim(ground, zone, level, job)

    def _lend(
        self, ground: Ground, job: str, holds: Sequence[Holds], level: int, near: Cell | None
    ) -> Cell | None:
        rest = lend_rest(ground, job) if level == 0 else None
        return rest or lend(ground, level, job, holds)

    def _release(self, ground: Ground, cells: Sequence[Cell], *, spare: bool) -> None:
        for cell in cells:
            if spare:
                ground.end_loan(cell)
            else:
                ground.free(cell)

    def _why_blocked(self, ground: Ground, zone: Zone, job: str, request: Request) -> Blocked:
        levels = [k for width in request.widths for k in members(ground.shape, width)]
        if not fits(ground, zone, levels):
            return Blocked(Reason.QUOTA)
        found = self._try(ground, request, None, partial(self._claim_cell, ground, zone, job))
        if found is None:
            return Blocked(Reason.SHORT)
        cells = [cell for _, of_member in found for cell in of_member]
        jobs = [ground.lent[spare] for spare in _in_cells(ground, cells)]
        self._release(ground, cells, spare=False)
        return Blocked(Reason.SPARE, tuple(dict.fromkeys(jobs)))


def _in_cells(ground: Ground, cells: Sequence[Cell]) -> list[Cell]:
    """Cells of spare jobs in or around some."""
    return [lent for cell in cells for lent in ground.lent_in(cell)]


def _nodes_asked(ground: Ground, request: Request) -> int:
    shape = ground.shape
    return sum(len(members(shape, w)) for w in request.widths if w >= shape.size[shape.node])


def _add_rests(ground: Ground, taken: _Taken) -> None:
    """Note what rounding up leaves over; not in pinned cells, which are their owner's alone."""
    for width, cells in taken.members:
        if ground.owner(cells[0])[0].pin is None:
            leaves = [(leaf, cell) for cell in cells for leaf in ground.shape.leaves(cell)]
            ground.rests.update((Cell(0, leaf), cell) for leaf, cell in leaves[width:])
