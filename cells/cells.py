"""Cells of a cluster: who has which GPUs, pool by pool, as if each were alone (HiveD; SIA §5.5)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from copy import deepcopy

from cells.asked import Allocation, ResolvedRequest
from cells.chain.chain_state import ChainState
from cells.chain.invariants import check_ground
from cells.layout.requests import Blocked, BlockReason, CellPlacement, Request
from cells.layout.shape import Cell
from cells.layout.spec import CellsError, Spec
from cells.ownership import Ownership
from cells.placement.gangs import place_all
from cells.placement.holds import ReservedGpus
from cells.placement.lending import lend_all
from cells.placement.placing import Price, alike, fits, fits_one, place
from cells.snapshot import (
    CellHolder,
    CellsSnapshot,
    bind,
    bound_in,
    give,
    gone_name,
    leave_over,
    lend,
)

MOST_KEPT = 2**16
"""Answers kept for those who get the same again: 30 MB; working one out costs a microsecond."""


class Cells(Ownership):
    """The cells of a cluster and the jobs in them.

    Jobs are named by whoever asks. Dedicated jobs use their pool's quota: a request that finds its
    cells in the pool's unused quota (those bound and those not) is in quota. It either gets them at
    once, or spare jobs or lost nodes alone are in its way. Spare jobs use vacant cells anywhere,
    but none that is a buddy of a dedicated job's cell, nor in a pinned cell (rests aside, see
    `lend_rests`).

    Errors change nothing. All choices are deterministic.

    Args:
        spec: The cluster, its pools' quotas and pinned cells.
        lend_rests: Spare jobs of one GPU may use what rounding widths up leaves over.
    """

    def __init__(self, spec: Spec, *, lend_rests: bool = False) -> None:
        """Build it. Raises CellsError."""
        super().__init__(spec)
        self._lend_rests = lend_rests
        self._jobs: dict[str, Allocation] = {}
        self._claims: dict[str, None] = {}
        self._kept = 0  # answers in `_same`

    # Dedicated jobs.

    def allocate(self, job: str, request: Request) -> CellPlacement | None:
        """Give a dedicated job its cells at once, or None. O(cells asked · levels · log n).

        `blockers` says why not. Raises CellsError for what the cluster does not know, or a job that
        has cells already.
        """
        taken = self.give(job, self.look_up(request))
        return None if taken is None else taken.placement

    def give(self, job: str, asked: ResolvedRequest) -> Allocation | None:
        """As `allocate`, of what was looked up."""
        if job in self._jobs:
            raise _has_cells(job)
        level = asked.level
        if level < 0:
            return self._place_gang(job, asked)
        number = place(asked.ground, asked.zone, level)
        if number is None:
            return None
        self._jobs[job] = taken = asked.taken[number] or self._take(asked, number)
        if self._lend_rests:
            _add_rests(asked, taken.cells)
        return taken

    def _take(self, asked: ResolvedRequest, number: int) -> Allocation:
        """What a job has that got the one cell it asked for; kept for others that get it again."""
        if self._kept == MOST_KEPT:
            self._kept = 0
            for same in self._same.values():
                same[:] = [None] * len(same)
        self._kept += 1
        asked.taken[number] = taken = Allocation(asked, [Cell(asked.level, number)])
        return taken

    def claim(self, job: str, request: Request) -> CellPlacement | None:
        """As `allocate`, but spare jobs may still run in its cells: those least lent are chosen.

        The job may start when `ready`; no spare job gets into its cells from now on, so that it
        waits only for those of `waits_for` to end. O(cells of a level).
        """
        return self._claim(job, request, reserved=False)

    def reserve(self, name: str, request: Request) -> CellPlacement | None:
        """Allocate dedicated cells to no job (§5.5); `free` releases them.

        While spare jobs are in them (not `ready`), all requests for spare cells fail.
        """
        return self._claim(name, request, reserved=True)

    def _claim(self, job: str, request: Request, *, reserved: bool) -> CellPlacement | None:
        if job in self._jobs:
            raise _has_cells(job)
        asked = self.look_up(request)
        taken = self._place_gang(job, asked, reserved=reserved)
        if taken is None:
            taken = self._place_gang(job, asked, alike, reserved=reserved)
        if taken is not None and self.waits_for(job):
            self._claims[job] = None
        return None if taken is None else taken.placement

    def _place_gang(
        self, job: str, asked: ResolvedRequest, over: Price | None = None, *, reserved: bool = False
    ) -> Allocation | None:
        cells = place_all(asked.ground, asked.zone, asked.widths, over)
        if cells is None:
            return None
        self._jobs[job] = taken = Allocation(asked, cells, reserved=reserved)
        if self._lend_rests and not reserved:
            _add_rests(asked, cells)
        return taken

    def ready(self, job: str) -> bool:
        """No spare job runs in the cells of this dedicated job or reservation. O(its cells)."""
        return not self.waits_for(job)

    def waits_for(self, job: str) -> tuple[str, ...]:
        """Spare jobs in a dedicated job's cells, each once (but for those in its rests)."""
        taken = self._taken(job)
        return _lent_in(taken.ground, taken.cells, taken.ground.rests)

    def in_quota(self, request: Request) -> bool:
        """The pool's unused quota has such cells, spare jobs and lost nodes aside. O(levels)."""
        return self.has(self.look_up(request))

    def has(self, asked: ResolvedRequest) -> bool:
        """As `in_quota`, of what was looked up."""
        if asked.level >= 0:
            return fits_one(asked.zone, asked.level)
        return fits(asked.zone, asked.levels())

    def blockers(self, request: Request, price: Price = alike) -> Blocked | None:
        """Why a request would have to wait; None if it need not.

        If spare jobs are in its way, those of the least `price`: by default the fewest GPUs.
        """
        asked = self.look_up(request)
        ground, zone, widths = asked.ground, asked.zone, asked.widths
        cells = place_all(ground, zone, widths)
        if cells is not None:
            _give_back(ground, cells)
            return None
        if not fits(zone, asked.levels()):
            return Blocked(BlockReason.QUOTA)
        cells = place_all(ground, zone, widths, price)
        if cells is None:
            return Blocked(BlockReason.SHORT)
        jobs = _lent_in(ground, cells, ())
        _give_back(ground, cells)
        return Blocked(BlockReason.SPARE, jobs)

    # Spare jobs.

    def holds(self, chain: str = "", *, apart: bool = False) -> ReservedGpus:
        """Numbers to hold back in one window, for `lend`: see `cells.holds`."""
        return ReservedGpus(self._ground[self._cluster.chain(chain)], apart=apart)

    def lend(
        self, job: str, request: Request, holds: Sequence[ReservedGpus] = ()
    ) -> CellPlacement | None:
        """Give a spare job cells that leave all `holds` kept, or None.

        None, too, while a reservation is not ready. Nothing is preempted for it. Raises CellsError.
        O(pools · levels · (windows + levels)) for each cell.
        """
        taken = self.lend_to(job, self.look_up(request), holds)
        return None if taken is None else taken.placement

    def lend_to(
        self, job: str, asked: ResolvedRequest, holds: Sequence[ReservedGpus] = ()
    ) -> Allocation | None:
        """As `lend`, of what was looked up."""
        if job in self._jobs:
            raise _has_cells(job)
        if any(self._taken(name).reserved for name in self._claims):
            return None
        cells = lend_all(asked.ground, asked.widths, job, holds)
        if cells is None:
            return None
        self._jobs[job] = taken = Allocation(asked, cells, spare=True)
        return taken

    # All jobs.

    def free(self, job: str) -> None:
        """Take back a job's cells or a reservation. O(its cells · levels · log n)."""
        taken = self._jobs.pop(job, None)
        if taken is None:
            raise _has_none(job)
        give_back = taken.ground.end_loan if taken.spare else taken.ground.free
        for cell in taken.cells:
            give_back(cell)
        if self._claims:
            self._claims = {n: None for n in self._claims if n != job and not self.ready(n)}

    def placement(self, job: str) -> CellPlacement:
        """Where a job is."""
        return self._taken(job).placement

    def jobs(self) -> dict[str, bool]:
        """All jobs with cells, and whether they are spare; reservations are not among them."""
        return {job: taken.spare for job, taken in self._jobs.items() if not taken.reserved}

    # The whole.

    def dump(self) -> CellsSnapshot:
        """All that is known, as plain values. O(nodes + bound cells + jobs' cells)."""
        chains = {ground: chain for chain, ground in self._ground.items()}
        tenants = (
            CellHolder(job, chains[t.ground], t.widths, t.cells, t.spare, t.reserved)
            for job, t in self._jobs.items()
        )
        return CellsSnapshot(
            spec=self.spec(),
            lend_rests=self._lend_rests,
            pools=tuple(self._pools),
            zones=tuple(dict.fromkeys(pool for ground in chains for pool in ground.zones)),
            out=tuple(self._why.items()),
            gone=tuple(self.gone()),
            bound=tuple(each for g, chain in chains.items() for each in bound_in(chain, g)),
            tenants=tuple(tenants),
            rests=tuple((chain, leaf.number) for g, chain in chains.items() for leaf in g.rests),
        )

    @classmethod
    def restore(cls, snapshot: CellsSnapshot) -> Cells:
        """Cells that answer from now on as those did that were dumped, placements included.

        Raises CellsError for a snapshot that contradicts itself. O(GPUs + cells · levels · log n).
        """
        cells = cls(snapshot.spec, lend_rests=snapshot.lend_rests)
        cells.set_quotas({pool: {} for pool in snapshot.zones})
        cells.set_quotas(snapshot.quotas())
        cells.settle(snapshot)
        return cells

    def settle(self, snapshot: CellsSnapshot) -> None:
        """Have all that a snapshot says where it was; for `restore`."""
        for ground in self._ground.values():
            ground.zones = {p: ground.zones[p] for p in snapshot.zones} | ground.zones
        for chain, number, name in snapshot.gone:
            self._cluster.call(chain, number, name)
        for bound in snapshot.bound:
            bind(self._ground_of(bound.chain), bound)
        asked: dict[tuple[str, tuple[int, ...]], ResolvedRequest] = {}
        for tenant in sorted(snapshot.tenants, key=lambda tenant: tenant.spare):
            self._settle(tenant, asked)
        self._jobs = {tenant.name: self._jobs[tenant.name] for tenant in snapshot.tenants}
        for chain, rest in snapshot.rests:
            leave_over(self._ground_of(chain), rest)
        for node, why in snapshot.out:
            self.take_out(node, why)
        for chain, number, _ in snapshot.gone:
            self.remove(gone_name(chain, number))
        dedicated = [job for job, taken in self._jobs.items() if not taken.spare]
        self._claims = {job: None for job in dedicated if not self.ready(job)}

    def _settle(
        self, tenant: CellHolder, known: dict[tuple[str, tuple[int, ...]], ResolvedRequest]
    ) -> None:
        """Give a job its cells again; `known` are requests by chain and widths."""
        name, chain, widths, cells, spare, reserved = tenant
        if name in self._jobs:
            raise _has_cells(name)
        ground = self._ground_of(chain)
        asked = known.get((chain, widths))
        if asked is None:
            request = Request("", widths, chain)
            asked = ResolvedRequest(
                request, ground, self._cluster.of[chain], ground.common, self._same
            )
            known[chain, widths] = asked
        if asked.levels() != [cell.level for cell in cells] or min(widths, default=0) < 1:
            raise CellsError(f"{name}: its cells are not those of its widths {list(widths)}")
        (lend if spare else give)(ground, name, cells)
        self._jobs[name] = Allocation(asked, cells, spare=spare, reserved=reserved)

    def _ground_of(self, chain: str) -> ChainState:
        return self._ground[self._cluster.chain(chain)]

    def copy(self) -> Cells:
        """One of its own, for what-if questions; its `ReservedGpus` are made anew. O(cells)."""
        return deepcopy(self)

    def check(self) -> None:
        """Assert every invariant. O(cells)."""
        for chain, ground in self._ground.items():
            check_ground(ground)
            jobs = {job: taken for job, taken in self._jobs.items() if taken.ground is ground}
            given = [cell for taken in jobs.values() if not taken.spare for cell in taken.cells]
            assert sorted(given) == sorted(ground.cells_given()), chain
            lent = {cell: job for job, taken in jobs.items() if taken.spare for cell in taken.cells}
            assert lent == ground.loans.jobs, chain
        for job, taken in self._jobs.items():
            assert job in self._claims or taken.spare or self.ready(job), job

    def _taken(self, job: str) -> Allocation:
        if job not in self._jobs:
            raise _has_none(job)
        return self._jobs[job]


def _has_none(job: str) -> CellsError:
    return CellsError(f"{job!r} has no cells")


def _has_cells(job: str) -> CellsError:
    return CellsError(f"{job!r} has cells already; free them first")


def _give_back(ground: ChainState, cells: Sequence[Cell]) -> None:
    for cell in cells:
        ground.free(cell)


def _lent_in(ground: ChainState, cells: Sequence[Cell], but: Container[Cell]) -> tuple[str, ...]:
    """Spare jobs in or around some cells, each once."""
    lent = [each for cell in cells for each in ground.loans.at(cell) if each not in but]
    return tuple(dict.fromkeys(ground.loans.jobs[each] for each in lent))


def _add_rests(asked: ResolvedRequest, cells: Sequence[Cell]) -> None:
    """Note what rounding up leaves over; not in pinned cells, which are their owner's alone."""
    ground = asked.ground
    if asked.zone.pin is None:
        for width, of_member in ground.shape.by_member(asked.widths, cells):
            leaves = [leaf for cell in of_member for leaf in ground.shape.leaves(cell)]
            ground.rests.update((Cell(0, leaf), None) for leaf in leaves[width:])
