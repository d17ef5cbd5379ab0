"""The cells of the jobs of a state (§5.5): the interface between the core and `cells`.

The state counts GPUs in any case; with cells, a start also needs a placement. A spare job's loans
say whose quota it uses, and its placement says where it runs. The two need not be the same pool's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cells.cells import Cells
from cells.layout.requests import Request
from cells.placement.placing import Price, equal_price
from cells.placement.reservations import ReservedGpus
from cells.resolved import Allocation, ResolvedRequest
from cells.snapshot import CellsSnapshot
from sia.limits import MAX_QUOTA
from sia.model import Nodes, Stream

RESERVED = "\0kept for "
"""Prefix of the name under which cells are reserved for a job. No job id contains a NUL."""

DEDICATED = Stream.DEDICATED
"""A module constant, because Enum attribute access is ten times slower with CPython 3.11."""

CellQuota = Mapping[str, Mapping[str, int]]
"""The cells that a pool owns: numbers by chain and type."""


class Places:
    """The cells of one cluster, in terms of pools and jobs.

    All pools of a sharing group own cells of the same chain. A job gets cells of its pool's quota,
    or pinned cells of the pool if the quota has none. Against a spare job, pools of other groups
    reserve all of their cells, in addition to a policy's reservations.

    A job for which cells are reserved gets these when it is started as a dedicated job. They stay
    reserved when it stops or ends.
    """

    def __init__(
        self,
        cells: Cells,
        groups: Sequence[Mapping[str, int]],
        chains: Mapping[str, str] | None = None,
    ) -> None:
        """Build the placements of a state.

        Args:
            cells: The cells of the cluster. The caller must not change them afterwards.
            groups: For each sharing group, the quota in GPUs of each pool, by name.
            chains: The chain of each pool, needed for groups that no longer own cells.

        Raises ValueError if the pools and the cells contradict each other.
        """
        self._cells = cells
        self._allocate = cells.allocate_resolved
        self._pools = {pool: group for group in groups for pool in group}
        self._resolved: dict[str, dict[int, ResolvedRequest]] = {pool: {} for pool in self._pools}
        names = [name.removeprefix(RESERVED) for name in cells.jobs() if name.startswith(RESERVED)]
        self._reserved = dict.fromkeys(names)
        owned = cells.owned_gpus()
        for pool in owned:
            if pool not in self._pools:
                raise ValueError(f"quota.{pool}: unknown pool; use the name of a pool")
        for pool, group in self._pools.items():
            _refuse_other_size(pool, group[pool], owned)
        only = next(iter(cells.chains())) if len(cells.chains()) == 1 else ""
        self._chains: dict[str, str] = {}  # "" for pools of a group that owns no cells
        for group in groups:
            known = "" if chains is None else chains.get(next(iter(group)), "")
            self._chains |= dict.fromkeys(group, _chain(group, owned) or known or only)
        self._pins = {pool: cells.pins(pool) for pool in self._pools}
        self._set_quotas(cells.quotas())
        self._other_groups: dict[str, ReservedGpus | None] = {}
        for group in groups:
            self._other_groups |= dict.fromkeys(group, self.reservations(next(iter(group))))

    def _set_quotas(self, quotas: Mapping[str, CellQuota]) -> None:
        """Set all quotas, so that pools without cells are known as well."""
        self._cells.set_quotas({**{pool: {} for pool in self._pools}, **quotas})

    def _resolve(self, pool: str, width: int) -> ResolvedRequest | None:
        """Return the resolved request of a job, or None if its group has no cells."""
        resolved = self._resolved[pool].get(width)
        if resolved is None and self._chains[pool]:
            resolved = self._cells.resolve(Request(pool, (width,), self._chains[pool]))
            self._resolved[pool][width] = resolved
        return resolved

    def take(
        self,
        job_id: str,
        pool: str,
        width: int,
        stream: Stream,
        reservations: ReservedGpus | None = None,
        inside: str = "",
    ) -> Nodes | None:
        """Allocate quota cells or spare cells to a job; spare ones respect the reservations.

        With `inside`, a spare job gets cells that are reserved for that job, which has ended.
        Without `reservations`, only pools of other groups have reservations: all of their cells.
        Returns None, with nothing changed, if there are no cells for the job now.
        """
        if stream is DEDICATED and job_id in self._reserved:
            kept = RESERVED + job_id
            return self._cells.placement(kept).nodes if self._cells.ready(kept) else None
        resolved = self._resolved[pool].get(width) or self._resolve(pool, width)
        if resolved is None:
            return None
        if stream is DEDICATED:
            taken = self._allocate(job_id, resolved)
            if taken is None and self._pins[pool]:
                taken = self._take_pinned(job_id, resolved)
        elif inside:
            taken = self._cells.lend_inside(job_id, resolved, RESERVED + inside)
        else:
            reserved = reservations or self._other_groups[pool]
            taken = self._cells.lend_resolved(
                job_id, resolved, () if reserved is None else (reserved,)
            )
        return None if taken is None else taken.nodes

    def _pinned(self, resolved: ResolvedRequest) -> Iterator[Request]:
        """Yield the same request for each pinned cell of the pool."""
        request = resolved.request
        return (request._replace(pin=pin) for pin in self._pins[request.pool])

    def _take_pinned(self, job_id: str, resolved: ResolvedRequest) -> Allocation | None:
        for request in self._pinned(resolved):
            taken = self._allocate(job_id, self._cells.resolve(request))
            if taken is not None:
                return taken
        return None

    def free(self, job_id: str) -> None:
        """Release a job's cells, unless they are reserved for it."""
        if self._holder(job_id) == job_id:
            self._cells.free(job_id)

    def _holder(self, job_id: str) -> str:
        """Return the name under which a running job's cells are held. O(1)."""
        if job_id in self._reserved and not self._cells.holds(job_id):
            return RESERVED + job_id
        return job_id

    def keep(self, job_id: str) -> None:
        """Reserve the cells in which a dedicated job runs, beyond its end. O(1)."""
        self._cells.rename(job_id, RESERVED + job_id)
        self._reserved[job_id] = None

    def reserve(self, job_id: str, pool: str, width: int, price: Price = equal_price) -> None:
        """Reserve dedicated cells for a job that is not started now (§5.5).

        Spare jobs may still run in them if there are no others; the `price` of their GPUs is then
        the lowest. If the pool has no such cells, nothing is reserved; see `is_reserved`.
        """
        resolved = self._resolve(pool, width)
        if (
            resolved is not None
            and self._cells.claim(RESERVED + job_id, resolved.request, price) is not None
        ):
            self._reserved[job_id] = None

    def reserve_around(self, job_id: str, pool: str, width: int) -> bool:
        """Reserve the cells in which a spare job runs, if it may have just these.

        Returns whether it was done. The job runs on.
        """
        resolved = self._resolve(pool, width)
        name = RESERVED + job_id
        if resolved is None or not self._cells.claim_around(name, resolved.request, job_id):
            return False
        self._reserved[job_id] = None
        return True

    def is_home(self, job_id: str) -> bool:
        """Return whether a spare job runs in cells that are reserved for it. O(its cells)."""
        return job_id in self._reserved and job_id in self._cells.waits_for(RESERVED + job_id)

    def is_reserved(self, job_id: str) -> bool:
        """Return whether cells are reserved for a job. O(1)."""
        return job_id in self._reserved

    def reserved_jobs(self) -> list[str]:
        """Return the jobs for which cells are reserved."""
        return list(self._reserved)

    def release(self, job_id: str) -> None:
        """Release the cells that are reserved for a job."""
        del self._reserved[job_id]
        self._cells.free(RESERVED + job_id)

    def in_reserved(self, job_id: str) -> list[str]:
        """Return the other spare jobs in the cells that are reserved for a job."""
        return [each for each in self._cells.waits_for(RESERVED + job_id) if each != job_id]

    def idle_inside(self, job_id: str) -> int:
        """Return the GPUs without a spare job in the cells that are reserved for a job."""
        return self._cells.idle_inside(RESERVED + job_id)

    def in_quota(self, pool: str, width: int) -> bool:
        """Return whether a pool's unused cells fit a job, ignoring spare jobs and lost nodes."""
        resolved = self._resolve(pool, width)
        return resolved is not None and self._cells.in_quota_resolved(resolved)

    def blocking_spare_jobs(
        self, pool: str, width: int, price: Price, *, whole: bool = False
    ) -> tuple[str, ...]:
        """Return the spare jobs, in the cheapest cells, that a dedicated start waits for.

        With `whole` also the spare jobs that influence which cells later starts get. Empty if the
        start does not wait for spare jobs.
        """
        resolved = self._resolve(pool, width)
        if resolved is None:
            return ()
        blocked = self._cells.blockers(resolved.request, price, whole=whole)
        return () if blocked is None else blocked.spare_jobs

    def fits_quota(self, pool: str, width: int) -> bool:
        """Return whether a pool's cells could hold such a job on an idle cluster."""
        resolved = self._resolve(pool, width)
        if resolved is None:
            return False
        return any(
            self._cells.fits_quota(each) for each in (resolved.request, *self._pinned(resolved))
        )

    def gpus(self, pool: str, width: int) -> int:
        """Return the GPUs that a job takes: its width rounded up to cells. O(1)."""
        resolved = self._resolved[pool].get(width) or self._resolve(pool, width)
        return width if resolved is None else resolved.gpus

    def narrower(self, pool: str, width: int) -> int:
        """Return the largest width that takes fewer GPUs, or 0."""
        return self._cells.narrower(width, self._chains[pool]) if self._chains[pool] else 0

    def reservations(
        self, pool: str, *, exclude_bound: bool = False, clean: float = 0.0
    ) -> ReservedGpus | None:
        """Return the reservations that apply to a pool's spare jobs in one window.

        A policy adds to them. Pools of other groups reserve all of their cells. `exclude_bound` and
        `clean` are as in `ReservedGpus`. Returns None if the pool's group has no cells.
        """
        chain = self._chains[pool]
        if not chain:
            return None
        reservations = self._cells.reservations(chain, exclude_bound=exclude_bound, clean=clean)
        for other, group in self._pools.items():
            if group is not self._pools[pool] and self._chains[other] == chain:
                reservations.set(other, MAX_QUOTA)  # all it owns, even after its quota changes
        return reservations

    def take_out(self, node: str, why: str) -> None:
        """Mark a node as bad or drained. Jobs on it stay. Raises ValueError."""
        self._cells.take_out(node, why)

    def bring_back(self, node: str) -> None:
        """Mark a node as healthy. Raises ValueError."""
        self._cells.bring_back(node)

    def set_quota(self, pool: str, quota: int, cells: CellQuota) -> None:
        """Change a pool's cells, in its group's chain. Raises ValueError and changes nothing."""
        quotas = {**self._cells.quotas(), pool: cells}
        tried = self._cells.copy()
        tried.set_quotas(quotas)
        owned = tried.owned_gpus()
        _refuse_other_size(pool, quota, owned)
        if any(chain != self._chains[pool] for chain in owned.get(pool, {})):
            raise ValueError(f"quota.{pool}: the pool's cells must stay in its group's chain")
        self._set_quotas(quotas)

    def dump(self) -> CellsSnapshot:
        """Return the state of the cells. Complexity as `Cells.dump`."""
        return self._cells.dump()

    def chains(self) -> dict[str, str]:
        """Return the chain of each pool, "" if its group never owned cells. For `__init__`."""
        return dict(self._chains)

    def check(self, running: Mapping[str, tuple[Stream, int]]) -> None:
        """Assert that exactly these running jobs, with their GPUs, have cells. O(cells)."""
        self._cells.check()
        expected = {
            self._holder(job_id): stream is Stream.SPARE for job_id, (stream, _) in running.items()
        }
        assert self._cells.jobs() == expected | {
            RESERVED + job_id: False for job_id in self._reserved
        }
        for job_id, (stream, width) in running.items():
            spare, holder = stream is Stream.SPARE, self._holder(job_id)
            assert spare or self._cells.ready(holder), f"a spare job is in the cells of {job_id}"
            nodes = self._cells.placement(holder).nodes
            assert sum(len(gpus) for _, gpus in nodes) == width, job_id


def _refuse_other_size(pool: str, quota: int, owned: Mapping[str, Mapping[str, int]]) -> None:
    gpus = sum(owned.get(pool, {}).values())
    if gpus != quota:
        raise ValueError(
            f"quota.{pool}: its cells have {gpus} GPUs, but the pool's quota is {quota}; "
            "make both equal"
        )


def _chain(group: Iterable[str], owned: Mapping[str, Mapping[str, int]]) -> str:
    """Return the chain in which a group's pools own cells.

    Raises ValueError if there are several.
    """
    first: tuple[str, str] | None = None
    for pool in group:
        for chain in owned.get(pool, {}):
            if first is None:
                first = pool, chain
            elif chain != first[1]:
                raise ValueError(
                    f"quota.{pool}: cells of chain {chain}, but pool {first[0]} of the same "
                    f"sharing group has cells of {first[1]}; use one sharing group per chain"
                )
    return first[1] if first else ""
