"""Cells of a cluster: who has which GPUs, pool by pool, as if each were alone (HiveD; SIA §5.5)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from copy import deepcopy

from cells.answers import Blocked, Placement, Reason, Request
from cells.asked import Asked, Taken
from cells.check import check_ground
from cells.gangs import place_all
from cells.ground import Ground
from cells.holds import Holds
from cells.lending import lend_all
from cells.ownership import Ownership
from cells.placing import Price, Spot, alike, fits, place
from cells.shape import Cell
from cells.spec import CellsError, Spec


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
        self._jobs: dict[str, Taken] = {}
        self._claims: dict[str, None] = {}

    # Dedicated jobs.

    def allocate(self, job: str, request: Request) -> Placement | None:
        """Give a dedicated job its cells at once, or None. O(cells asked · levels · log n).

        `blockers` says why not. Raises CellsError for what the cluster does not know, or a job that
        has cells already.
        """
        if job in self._jobs:
            raise _has_cells(job)
        asked = self._asked.get(request) or self._look_up(request)
        if asked.level < 0:
            return self._place_gang(job, asked)
        spot = place(asked.ground, asked.zone, asked.level)
        if spot is None:
            return None
        cell, root = spot
        self._jobs[job] = taken = Taken(asked, (cell,), (root,))
        if self._lend_rests:
            _add_rests(taken)
        return asked.nodes.one(cell, asked.widths[0])

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
        if job in self._jobs:
            raise _has_cells(job)
        asked = self._look_up(request)
        placement = self._place_gang(job, asked, reserved=reserved)
        if placement is None:
            placement = self._place_gang(job, asked, alike, reserved=reserved)
        if placement is not None and self.waits_for(job):
            self._claims[job] = None
        return placement

    def _place_gang(
        self, job: str, asked: Asked, over: Price | None = None, *, reserved: bool = False
    ) -> Placement | None:
        spots = place_all(asked.ground, asked.zone, asked.widths, over)
        if spots is None:
            return None
        cells, roots = zip(*spots, strict=True)
        self._jobs[job] = taken = Taken(asked, cells, roots, reserved)
        if self._lend_rests and not reserved:
            _add_rests(taken)
        return asked.nodes.all_of(asked.widths, cells)

    def ready(self, job: str) -> bool:
        """No spare job runs in the cells of this dedicated job or reservation. O(its cells)."""
        return not self.waits_for(job)

    def waits_for(self, job: str) -> tuple[str, ...]:
        """Spare jobs in a dedicated job's cells, each once (but for those in its rests)."""
        taken = self._taken(job)
        rests = taken.asked.ground.rests
        return _lent_in(taken.asked.ground, taken.cells, rests)

    def in_quota(self, request: Request) -> bool:
        """The pool's unused quota has such cells, spare jobs and lost nodes aside. O(levels)."""
        asked = self._look_up(request)
        members = [k for width in asked.widths for k in asked.ground.shape.members(width)]
        return fits(asked.zone, members)

    def blockers(self, request: Request, price: Price = alike) -> Blocked | None:
        """Why a request would have to wait; None if it need not.

        If spare jobs are in its way, those of the least `price`: by default the fewest GPUs.
        """
        ground, _, zone, widths, _ = self._look_up(request)
        spots = place_all(ground, zone, widths)
        if spots is not None:
            _give_back(ground, spots)
            return None
        if not fits(zone, [k for width in widths for k in ground.shape.members(width)]):
            return Blocked(Reason.QUOTA)
        spots = place_all(ground, zone, widths, price)
        if spots is None:
            return Blocked(Reason.SHORT)
        jobs = _lent_in(ground, [cell for cell, _ in spots], ())
        _give_back(ground, spots)
        return Blocked(Reason.SPARE, jobs)

    # Spare jobs.

    def holds(self, chain: str = "", *, apart: bool = False) -> Holds:
        """Numbers to hold back in one window, for `lend`: see `cells.holds`."""
        return Holds(self._ground[self._cluster.chain(chain)], apart=apart)

    def lend(self, job: str, request: Request, holds: Sequence[Holds] = ()) -> Placement | None:
        """Give a spare job cells that leave all `holds` kept, or None.

        None, too, while a reservation is not ready. Nothing is preempted for it. Raises CellsError.
        O(pools · levels · (windows + levels)) for each cell.
        """
        if job in self._jobs:
            raise _has_cells(job)
        asked = self._look_up(request)
        if any(self._taken(name).reserved for name in self._claims):
            return None
        cells = lend_all(asked.ground, asked.widths, job, holds)
        if cells is None:
            return None
        self._jobs[job] = Taken(asked, tuple(cells))
        return asked.nodes.all_of(asked.widths, cells)

    # All jobs.

    def free(self, job: str) -> None:
        """Take back a job's cells or a reservation. O(its cells · levels · log n)."""
        taken = self._taken(job)
        ground = taken.asked.ground
        if taken.roots:
            for cell, root in zip(taken.cells, taken.roots, strict=True):
                ground.free(cell, root)
        else:
            for cell in taken.cells:
                ground.end_loan(cell)
        del self._jobs[job]
        if self._claims:
            self._claims = {n: None for n in self._claims if n != job and not self.ready(n)}

    def placement(self, job: str) -> Placement:
        """Where a job is."""
        taken = self._taken(job)
        return taken.asked.nodes.all_of(taken.asked.widths, taken.cells)

    def jobs(self) -> dict[str, bool]:
        """All jobs with cells, and whether they are spare; reservations are not among them."""
        return {job: not taken.roots for job, taken in self._jobs.items() if not taken.reserved}

    # The whole.

    def copy(self) -> Cells:
        """One of its own, for what-if questions; its `Holds` are made anew. O(cells)."""
        return deepcopy(self)

    def check(self) -> None:
        """Assert every invariant. O(cells)."""
        for chain, ground in self._ground.items():
            check_ground(ground)
            jobs = {j: taken for j, taken in self._jobs.items() if taken.asked.ground is ground}
            given = {c: r for t in jobs.values() for c, r in zip(t.cells, t.roots, strict=False)}
            assert all(ground.root(cell) is root for cell, root in given.items()), chain
            assert given.keys() == {
                Cell(k, n) for k in ground.shape.levels for n in ground.given[k]
            }
            lent = {c: job for job, taken in jobs.items() if not taken.roots for c in taken.cells}
            assert lent == ground.loans.jobs, chain
        for job, taken in self._jobs.items():
            assert job in self._claims or not taken.roots or self.ready(job), job

    def _taken(self, job: str) -> Taken:
        if job not in self._jobs:
            raise CellsError(f"{job!r} has no cells")
        return self._jobs[job]


def _has_cells(job: str) -> CellsError:
    return CellsError(f"{job!r} has cells already; free them first")


def _give_back(ground: Ground, spots: Sequence[Spot]) -> None:
    for cell, root in spots:
        ground.free(cell, root)


def _lent_in(ground: Ground, cells: Sequence[Cell], but: Container[Cell]) -> tuple[str, ...]:
    """Spare jobs in or around some cells, each once."""
    lent = [each for cell in cells for each in ground.loans.at(cell) if each not in but]
    return tuple(dict.fromkeys(ground.loans.jobs[each] for each in lent))


def _add_rests(taken: Taken) -> None:
    """Note what rounding up leaves over; not in pinned cells, which are their owner's alone."""
    ground, _, zone, widths, _ = taken.asked
    if zone.pin is None:
        for width, cells in ground.shape.by_member(widths, taken.cells):
            leaves = [leaf for cell in cells for leaf in ground.shape.leaves(cell)]
            ground.rests.update((Cell(0, leaf), None) for leaf in leaves[width:])
