"""The cells of a cluster and the jobs in them, with per-pool guarantees (HiveD; SIA §5.5)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from cells.chain.chain_state import ChainState
from cells.chain.invariants import check_chain
from cells.layout.requests import Blocked, BlockReason, CellPlacement, Request
from cells.layout.shape import Cell
from cells.layout.spec import CellsError, Spec
from cells.ownership import Ownership
from cells.placement.gangs import place_all
from cells.placement.lending import lend_all, lend_inside
from cells.placement.placing import Price, bind_around, equal_price, fits, fits_one, place
from cells.placement.reservations import ReservedGpus
from cells.resolved import Allocation, ResolvedRequest
from cells.snapshot import (
    CellHolder,
    CellsSnapshot,
    bindings,
    gone_name,
    restore_binding,
    restore_dedicated,
    restore_spare,
)

MAX_CACHED_ALLOCATIONS = 2**16
"""Size of the cache of allocations, about 30 MB. Computing one again costs a microsecond."""


class Cells(Ownership):
    """The cells of a cluster and the jobs in them.

    The caller names the jobs. A dedicated job uses its pool's quota. A request is in quota if the
    pool's unused quota, bound or unbound, has cells for it. A request in quota gets its cells at
    once unless spare jobs or lost nodes are in the way. A spare job uses vacant cells of any pool,
    but never a buddy of a dedicated job's cell and never a pinned cell.

    A call that raises changes nothing. All choices are deterministic.

    Args:
        spec: The cluster, the pools' quotas and the pinned cells.
    """

    def __init__(self, spec: Spec) -> None:
        """Build the cells of a cluster. Raises CellsError for an inconsistent specification."""
        super().__init__(spec)
        self._jobs: dict[str, Allocation] = {}
        self._claims: dict[str, None] = {}
        self._cached = 0  # allocations cached in `_shared`

    # Dedicated jobs.

    def allocate(self, job: str, request: Request) -> CellPlacement | None:
        """Allocate cells to a dedicated job, or return None. O(cells requested · levels · log n).

        `blockers` returns the reason for None. Raises CellsError for an unknown pool, chain or
        pinned cell, and for a job that already has cells.
        """
        taken = self.allocate_resolved(job, self.resolve(request))
        return None if taken is None else taken.placement

    def allocate_resolved(self, job: str, resolved: ResolvedRequest) -> Allocation | None:
        """Do the same as `allocate` for a resolved request, and return the allocation."""
        if job in self._jobs:
            raise _has_cells(job)
        level = resolved.level
        if level < 0:
            return self._place_gang(job, resolved)
        number = place(resolved.state, resolved.zone, level)
        if number is None:
            return None
        self._jobs[job] = taken = resolved.allocations[number] or self._take(resolved, number)
        return taken

    def _take(self, resolved: ResolvedRequest, number: int) -> Allocation:
        """Return the allocation of a one-cell request.

        Later jobs that get the same cell share it.
        """
        if self._cached == MAX_CACHED_ALLOCATIONS:
            self._cached = 0
            for cached in self._shared.values():
                cached[:] = [None] * len(cached)
        self._cached += 1
        resolved.allocations[number] = taken = Allocation(resolved, [Cell(resolved.level, number)])
        return taken

    def claim(self, job: str, request: Request, price: Price = equal_price) -> CellPlacement | None:
        """Allocate cells in which spare jobs may still run, choosing the lowest total `price`.

        The job may start once `ready` is true. No further spare job is placed in its cells, so it
        waits only for the jobs in `waits_for` to end. O(cells of a level).
        """
        return self._claim(job, request, price, reserved=False)

    def claim_around(self, name: str, request: Request, job: str) -> bool:
        """Allocate the cells in which a spare job runs, if the request may get exactly these.

        The pool must own unbound cells of their size. Returns whether the cells were allocated; the
        spare job continues. O(its cells · levels · log n).
        """
        if name in self._jobs:
            raise _has_cells(name)
        resolved, own = self.resolve(request), self._taken(job)
        if own.state is not resolved.state or own.widths != resolved.widths:
            return False
        if not own.spare or not bind_around(resolved.state, resolved.zone, own.cells):
            return False
        self._jobs[name] = Allocation(resolved, list(own.cells))
        self._claims[name] = None
        return True

    def reserve(self, name: str, request: Request) -> CellPlacement | None:
        """Allocate dedicated cells without a job (§5.5). `free` releases them.

        While spare jobs still run in the reserved cells (the reservation is not `ready`), all spare
        requests fail.
        """
        return self._claim(name, request, equal_price, reserved=True)

    def _claim(
        self, job: str, request: Request, price: Price, *, reserved: bool
    ) -> CellPlacement | None:
        if job in self._jobs:
            raise _has_cells(job)
        resolved = self.resolve(request)
        taken = self._place_gang(job, resolved, reserved=reserved)
        if taken is None:
            taken = self._place_gang(job, resolved, price, reserved=reserved)
        if taken is not None and self.waits_for(job):
            self._claims[job] = None
        return None if taken is None else taken.placement

    def _place_gang(
        self,
        job: str,
        resolved: ResolvedRequest,
        over: Price | None = None,
        *,
        reserved: bool = False,
    ) -> Allocation | None:
        cells = place_all(resolved.state, resolved.zone, resolved.widths, over)
        if cells is None:
            return None
        self._jobs[job] = taken = Allocation(resolved, cells, reserved=reserved)
        return taken

    def ready(self, job: str) -> bool:
        """Return whether no spare job runs in the cells of a job or reservation. O(its cells)."""
        return not self.waits_for(job)

    def waits_for(self, job: str) -> tuple[str, ...]:
        """Return the spare jobs in a dedicated job's cells."""
        taken = self._taken(job)
        return _lent_in(taken.state, taken.cells)

    def in_quota(self, request: Request) -> bool:
        """Return whether the pool's unused quota fits a request, ignoring spare jobs. O(levels).

        Lost nodes are ignored as well.
        """
        return self.in_quota_resolved(self.resolve(request))

    def in_quota_resolved(self, resolved: ResolvedRequest) -> bool:
        """Do the same as `in_quota` for a resolved request."""
        if resolved.level >= 0:
            return fits_one(resolved.zone, resolved.level)
        return fits(resolved.zone, resolved.levels())

    def blockers(
        self, request: Request, price: Price = equal_price, *, whole: bool = False
    ) -> Blocked | None:
        """Return why a request would have to wait, or None if it would not.

        If spare jobs block the request, the result names those with the lowest `price`. By default
        every GPU has the same price, so the fewest GPUs are chosen. With `whole` it would also wait
        for spare jobs in other parts of its bound cells, where they influence which cells later
        requests get.
        """
        resolved = self.resolve(request)
        state, zone, widths = resolved.state, resolved.zone, resolved.widths
        cells = place_all(state, zone, widths, whole=whole)
        if cells is not None:
            jobs = _lent_around(state, cells) if whole else ()
            _give_back(state, cells)
            return Blocked(BlockReason.SPARE, jobs) if jobs else None
        if not fits(zone, resolved.levels()):
            return Blocked(BlockReason.QUOTA)
        cells = place_all(state, zone, widths, price, whole=whole)
        if cells is None:
            return Blocked(BlockReason.SHORT)
        jobs = _lent_around(state, cells) if whole else _lent_in(state, cells)
        _give_back(state, cells)
        return Blocked(BlockReason.SPARE, jobs)

    # Spare jobs.

    def reservations(
        self, chain: str = "", *, exclude_bound: bool = False, clean: float = 0.0
    ) -> ReservedGpus:
        """Return an empty set of reservations for one window, to be passed to `lend`.

        See `cells.placement.reservations`.
        """
        state = self._states[self._cluster.chain(chain)]
        return ReservedGpus(state, exclude_bound=exclude_bound, clean=clean)

    def lend(
        self, job: str, request: Request, reservations: Sequence[ReservedGpus] = ()
    ) -> CellPlacement | None:
        """Allocate cells to a spare job such that all reservations stay satisfied, or return None.

        Returns None as well while a reserved cell is not ready. No job is preempted. Raises
        CellsError. O(pools · levels · (windows + levels)) for each cell.
        """
        taken = self.lend_resolved(job, self.resolve(request), reservations)
        return None if taken is None else taken.placement

    def lend_resolved(
        self, job: str, resolved: ResolvedRequest, reservations: Sequence[ReservedGpus] = ()
    ) -> Allocation | None:
        """Do the same as `lend` for a resolved request, and return the allocation."""
        if job in self._jobs:
            raise _has_cells(job)
        if any(self._taken(name).reserved for name in self._claims):
            return None
        cells = lend_all(resolved.state, resolved.widths, job, reservations)
        if cells is None:
            return None
        self._jobs[job] = taken = Allocation(resolved, cells, spare=True)
        return taken

    def lend_inside(self, job: str, resolved: ResolvedRequest, holder: str) -> Allocation | None:
        """Allocate cells inside those of a dedicated job or reservation to a spare job.

        The holder must not need its cells any more. It counts as waiting for the spare job. Returns
        None, with nothing changed, if the cells do not suffice.
        """
        if job in self._jobs:
            raise _has_cells(job)
        taken = self._taken(holder)
        if taken.state is not resolved.state:
            return None
        cells = lend_inside(resolved.state, resolved.widths, job, taken.cells)
        if cells is None:
            return None
        self._jobs[job] = lent = Allocation(resolved, cells, spare=True)
        self._claims[holder] = None
        return lent

    def idle_inside(self, holder: str) -> int:
        """Return the GPUs without a spare job in a dedicated job's cells. O(its cells)."""
        taken = self._taken(holder)
        size, within = taken.state.shape.size, taken.state.loans.within
        return sum(size[cell.level] - within(cell) for cell in taken.cells)

    # All jobs.

    def holds(self, job: str) -> bool:
        """Return whether a job or reservation has cells. O(1)."""
        return job in self._jobs

    def rename(self, job: str, name: str) -> None:
        """Give the cells of a dedicated job or reservation another holder. O(1)."""
        taken = self._taken(job)
        if name in self._jobs:
            raise _has_cells(name)
        if taken.spare:
            raise CellsError(f"{job!r} is a spare job; only dedicated cells change their holder")
        del self._jobs[job]
        self._jobs[name] = taken
        if job in self._claims:
            del self._claims[job]
            self._claims[name] = None

    def free(self, job: str) -> None:
        """Release the cells of a job or reservation. O(cells of the job · levels · log n)."""
        taken = self._jobs.pop(job, None)
        if taken is None:
            raise _has_none(job)
        give_back = taken.state.end_loan if taken.spare else taken.state.free
        for cell in taken.cells:
            give_back(cell)
        if self._claims:
            self._claims = {n: None for n in self._claims if n != job and not self.ready(n)}

    def placement(self, job: str) -> CellPlacement:
        """Return the nodes and GPUs of a job."""
        return self._taken(job).placement

    def jobs(self) -> dict[str, bool]:
        """Map every job with cells to whether it is a spare job. Reservations are left out."""
        return {job: taken.spare for job, taken in self._jobs.items() if not taken.reserved}

    # Snapshots, copies and checks.

    def dump(self) -> CellsSnapshot:
        """Return the whole state as plain values. O(nodes + bound cells + cells of jobs)."""
        chains = {state: chain for chain, state in self._states.items()}
        tenants = (
            CellHolder(job, chains[t.state], t.widths, t.cells, t.spare, t.reserved)
            for job, t in self._jobs.items()
        )
        return CellsSnapshot(
            spec=self.spec(),
            pools=tuple(self._pools),
            zones=tuple(dict.fromkeys(pool for state in chains for pool in state.zones)),
            out=tuple(self._out_reasons.items()),
            gone=tuple(self.gone()),
            bound=tuple(each for g, chain in chains.items() for each in bindings(chain, g)),
            tenants=tuple(tenants),
        )

    @classmethod
    def restore(cls, snapshot: CellsSnapshot) -> Cells:
        """Build cells that behave exactly like the dumped ones from now on, placements included.

        Raises CellsError for a snapshot that contradicts itself. O(GPUs + cells · levels · log n).
        """
        cells = cls(snapshot.spec)
        cells.set_quotas({pool: {} for pool in snapshot.zones})
        cells.set_quotas(snapshot.quotas())
        cells.load(snapshot)
        return cells

    def load(self, snapshot: CellsSnapshot) -> None:
        """Load the bindings, jobs and nodes of a snapshot into new cells. `restore` calls this."""
        for state in self._states.values():
            state.zones = {p: state.zones[p] for p in snapshot.zones} | state.zones
        for chain, number, name in snapshot.gone:
            self._cluster.rename_node(chain, number, name)
        for bound in snapshot.bound:
            restore_binding(self._state_of(bound.chain), bound)
        resolved: dict[tuple[str, tuple[int, ...]], ResolvedRequest] = {}
        for tenant in sorted(snapshot.tenants, key=lambda tenant: tenant.spare):
            self._load_holder(tenant, resolved)
        self._jobs = {tenant.name: self._jobs[tenant.name] for tenant in snapshot.tenants}
        for node, why in snapshot.out:
            self.take_out(node, why)
        for chain, number, _ in snapshot.gone:
            self.remove(gone_name(chain, number))
        dedicated = [job for job, taken in self._jobs.items() if not taken.spare]
        self._claims = {job: None for job in dedicated if not self.ready(job)}

    def _load_holder(
        self, tenant: CellHolder, known: dict[tuple[str, tuple[int, ...]], ResolvedRequest]
    ) -> None:
        """Restore the cells of one job. `known` caches resolved requests by chain and widths."""
        name, chain, widths, cells, spare, reserved = tenant
        if name in self._jobs:
            raise _has_cells(name)
        state = self._state_of(chain)
        resolved = known.get((chain, widths))
        if resolved is None:
            request = Request("", widths, chain)
            resolved = ResolvedRequest(
                request, state, self._cluster.nodes_of[chain], state.common, self._shared
            )
            known[chain, widths] = resolved
        if resolved.levels() != [cell.level for cell in cells] or min(widths, default=0) < 1:
            raise CellsError(f"{name}: cells do not match its widths {list(widths)}")
        (restore_spare if spare else restore_dedicated)(state, name, cells)
        self._jobs[name] = Allocation(resolved, cells, spare=spare, reserved=reserved)

    def _state_of(self, chain: str) -> ChainState:
        return self._states[self._cluster.chain(chain)]

    def copy(self) -> Cells:
        """Return an independent copy.

        `ReservedGpus` of the original do not apply to it. O(cells).
        """
        return deepcopy(self)

    def check(self) -> None:
        """Assert every invariant. O(cells)."""
        for chain, state in self._states.items():
            check_chain(state)
            jobs = {job: taken for job, taken in self._jobs.items() if taken.state is state}
            given = [cell for taken in jobs.values() if not taken.spare for cell in taken.cells]
            assert sorted(given) == sorted(state.cells_given()), chain
            lent = {cell: job for job, taken in jobs.items() if taken.spare for cell in taken.cells}
            assert lent == state.loans.jobs, chain
        for job, taken in self._jobs.items():
            assert job in self._claims or taken.spare or self.ready(job), job

    def _taken(self, job: str) -> Allocation:
        if job not in self._jobs:
            raise _has_none(job)
        return self._jobs[job]


def _has_none(job: str) -> CellsError:
    return CellsError(f"{job!r} has no cells")


def _has_cells(job: str) -> CellsError:
    return CellsError(f"{job!r} already has cells; free them first")


def _give_back(state: ChainState, cells: Sequence[Cell]) -> None:
    for cell in cells:
        state.free(cell)


def _lent_around(state: ChainState, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the spare jobs in the bound cells that contain the given cells, each once.

    Spare jobs inside other dedicated cells are left out, because they use no cells of the pool.
    """
    roots = dict.fromkeys(state.root(cell).cell() for cell in cells)
    lent = [each for root in roots for each in state.loans.at(root)]
    mine = {*_lent_in(state, cells)}
    jobs = (state.loans.jobs[each] for each in lent if not state.is_given(each))
    return tuple(dict.fromkeys([*jobs, *mine]))


def _lent_in(state: ChainState, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the spare jobs in or around the given cells, each once."""
    lent = [each for cell in cells for each in state.loans.at(cell)]
    return tuple(dict.fromkeys(state.loans.jobs[each] for each in lent))
