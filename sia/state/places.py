"""Which cells the jobs of a state are in (§5.5): all that the core asks of `cells`.

GPUs are counted by the state, as ever; a place is what a start needs besides. A spare job's loans
say whose GPUs it uses, its place where it runs: the two need not be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cells.asked import Allocation, ResolvedRequest
from cells.cells import Cells
from cells.layout.requests import Request
from cells.placement.holds import ReservedGpus
from cells.placement.placing import Price
from cells.snapshot import CellsSnapshot
from sia.limits import MAX_QUOTA
from sia.model import Nodes, Stream

KEPT = "\0kept for "
"""Begins the name under which cells are kept; no job's id has a NUL in it."""

DEDICATED = Stream.DEDICATED
"""Looked up once: with CPython 3.11 an Enum takes ten times as long as a module."""

CellQuota = Mapping[str, Mapping[str, int]]
"""Cells that a pool owns, by chain and type."""


class Places:
    """The cells of one cluster, in terms of pools and jobs.

    A pool owns cells of one chain, as do all pools of a sharing group. Its jobs get cells of its
    quota; pinned ones if there are none, as nobody else can use these. Pools outside a spare job's
    group keep all that they own, besides what a policy has anybody hold back.

    Attributes:
        free: Take back a job's cells, by its id.
    """

    def __init__(
        self,
        cells: Cells,
        groups: Sequence[Mapping[str, int]],
        chains: Mapping[str, str] | None = None,
    ) -> None:
        """Take the quota (GPUs) of each pool, by name, of each sharing group.

        A group that owns nothing any more stays in its chain: `chains` says by pool in which.
        Raises ValueError where pools and cells contradict each other.
        """
        self._cells = cells
        self.free = cells.free
        self._give = cells.give
        self._pools = {pool: group for group in groups for pool in group}
        self._asked: dict[str, dict[int, ResolvedRequest]] = {pool: {} for pool in self._pools}
        names = [name.removeprefix(KEPT) for name in cells.jobs() if name.startswith(KEPT)]
        self._kept = dict.fromkeys(names)
        owned = cells.owns()
        for pool in owned:
            if pool not in self._pools:
                raise ValueError(f"quota.{pool}: no pool has this name; name one that is there")
        for pool, group in self._pools.items():
            _refuse_other_size(pool, group[pool], owned)
        only = next(iter(cells.chains())) if len(cells.chains()) == 1 else ""
        self._chains: dict[str, str] = {}  # empty: of a group that owns nothing
        for group in groups:
            known = "" if chains is None else chains.get(next(iter(group)), "")
            self._chains |= dict.fromkeys(group, _chain(group, owned) or known or only)
        self._pins = {pool: cells.pins(pool) for pool in self._pools}
        self._requota(cells.quotas())
        self._apart: dict[str, ReservedGpus | None] = {}
        for group in groups:
            self._apart |= dict.fromkeys(group, self.holds(next(iter(group))))

    def _requota(self, quotas: Mapping[str, CellQuota]) -> None:
        """Give pools their cells; those without any are known to the cells too."""
        self._cells.set_quotas({**{pool: {} for pool in self._pools}, **quotas})

    def _ask(self, pool: str, width: int) -> ResolvedRequest | None:
        """What a job asks for; None if its group has no cells."""
        asked = self._asked[pool].get(width)
        if asked is None and self._chains[pool]:
            asked = self._cells.look_up(Request(pool, (width,), self._chains[pool]))
            self._asked[pool][width] = asked
        return asked

    def take(
        self, job_id: str, pool: str, width: int, stream: Stream, holds: ReservedGpus | None = None
    ) -> Nodes | None:
        """Give a job cells: of its pool's quota, or spare ones that leave what is held back.

        Without `holds` that is all that pools of other groups own. None, with nothing changed, if
        there are none for it now.
        """
        asked = self._asked[pool].get(width) or self._ask(pool, width)
        if asked is None:
            return None
        if stream is DEDICATED:
            taken = self._give(job_id, asked)
            if taken is None and self._pins[pool]:
                taken = self._take_pinned(job_id, asked)
        else:
            kept = holds or self._apart[pool]
            taken = self._cells.lend_to(job_id, asked, () if kept is None else (kept,))
        return None if taken is None else taken.nodes

    def _pinned(self, asked: ResolvedRequest) -> Iterator[Request]:
        """The same of each pinned cell of the pool."""
        request = asked.request
        return (request._replace(pin=pin) for pin in self._pins[request.pool])

    def _take_pinned(self, job_id: str, asked: ResolvedRequest) -> Allocation | None:
        for request in self._pinned(asked):
            taken = self._give(job_id, self._cells.look_up(request))
            if taken is not None:
                return taken
        return None

    def keep(self, job_id: str, pool: str, width: int) -> None:
        """Keep dedicated cells for a job that needs none now (§5.5, reservation).

        Where there is no other place, spare jobs may still be in them. If there is none at all
        nothing is kept: `keeps` says so.
        """
        asked = self._ask(pool, width)
        if asked is not None and self._cells.claim(KEPT + job_id, asked.request) is not None:
            self._kept[job_id] = None

    def keeps(self, job_id: str) -> bool:
        """Cells are kept for a job. O(1)."""
        return job_id in self._kept

    def kept(self) -> list[str]:
        """Jobs for which cells are kept."""
        return list(self._kept)

    def release(self, job_id: str) -> None:
        """Keep cells for a job no longer."""
        del self._kept[job_id]
        self._cells.free(KEPT + job_id)

    def within(self, pool: str, width: int) -> bool:
        """A pool's unused cells would do for a job, were no spare job and lost node in the way."""
        asked = self._ask(pool, width)
        return asked is not None and self._cells.has(asked)

    def in_the_way(self, pool: str, width: int, price: Price) -> tuple[str, ...]:
        """Spare jobs, of the least price, that a dedicated start waits for.

        None where it waits for something else.
        """
        asked = self._ask(pool, width)
        blocked = None if asked is None else self._cells.blockers(asked.request, price)
        return () if blocked is None else blocked.spare_jobs

    def could(self, pool: str, width: int) -> bool:
        """Whether a pool's cells have room for such a job, when nothing else runs in them."""
        asked = self._ask(pool, width)
        if asked is None:
            return False
        return any(self._cells.could(each) for each in (asked.request, *self._pinned(asked)))

    def gpus(self, pool: str, width: int) -> int:
        """GPUs that a job takes: its width rounded up to cells. O(1)."""
        asked = self._asked[pool].get(width) or self._ask(pool, width)
        return width if asked is None else asked.gpus

    def narrower(self, pool: str, width: int) -> int:
        """The greatest width that takes fewer; 0 if none does."""
        return self._cells.narrower(width, self._chains[pool]) if self._chains[pool] else 0

    def holds(self, pool: str, *, apart: bool = False) -> ReservedGpus | None:
        """What is held back from a pool's spare jobs in one window, with nothing set by a policy.

        Pools of other groups hold all they own; see `ReservedGpus` for `apart`. None if a pool's
        group has no cells.
        """
        chain = self._chains[pool]
        if not chain:
            return None
        holds = self._cells.holds(chain, apart=apart)
        for other, group in self._pools.items():
            if group is not self._pools[pool] and self._chains[other] == chain:
                holds.set(other, MAX_QUOTA)  # however much it owns at the time
        return holds

    def take_out(self, node: str, why: str) -> None:
        """A node is bad, or drained: jobs on it stay, no more come. Raises ValueError."""
        self._cells.take_out(node, why)

    def bring_back(self, node: str) -> None:
        """A node is well again. Raises ValueError."""
        self._cells.bring_back(node)

    def requota(self, pool: str, quota: int, cells: CellQuota) -> None:
        """Give a pool other cells, of its group's chain. Raises ValueError and changes nothing."""
        quotas = {**self._cells.quotas(), pool: cells}
        tried = self._cells.copy()
        tried.set_quotas(quotas)
        owned = tried.owns()
        _refuse_other_size(pool, quota, owned)
        if any(chain != self._chains[pool] for chain in owned.get(pool, {})):
            raise ValueError(f"quota.{pool}: a pool stays in its group's chain; keep it there")
        self._requota(quotas)

    def dump(self) -> CellsSnapshot:
        """All that the cells know. Costs what `Cells.dump` does."""
        return self._cells.dump()

    def chains(self) -> dict[str, str]:
        """The chain of each pool, empty if its group never owned cells; for `__init__`."""
        return dict(self._chains)

    def check(self, running: Mapping[str, tuple[Stream, int]]) -> None:
        """Assert that these jobs, of so many GPUs each, and no others have cells; O(cells)."""
        self._cells.check()
        expected = {job_id: stream is Stream.SPARE for job_id, (stream, _) in running.items()}
        assert self._cells.jobs() == expected | {KEPT + job_id: False for job_id in self._kept}
        for job_id, (stream, width) in running.items():
            spare = stream is Stream.SPARE
            assert spare or self._cells.ready(job_id), f"a spare job is in the cells of {job_id}"
            nodes = self._cells.placement(job_id).nodes
            assert sum(len(gpus) for _, gpus in nodes) == width, job_id


def _refuse_other_size(pool: str, quota: int, owned: Mapping[str, Mapping[str, int]]) -> None:
    gpus = sum(owned.get(pool, {}).values())
    if gpus != quota:
        raise ValueError(
            f"quota.{pool}: cells of {gpus} GPUs, but the pool's quota is {quota}; make them the "
            "same"
        )


def _chain(group: Iterable[str], owned: Mapping[str, Mapping[str, int]]) -> str:
    """The chain that pools of a group own cells of. Raises ValueError if there are several."""
    first: tuple[str, str] | None = None
    for pool in group:
        for chain in owned.get(pool, {}):
            if first is None:
                first = pool, chain
            elif chain != first[1]:
                raise ValueError(
                    f"quota.{pool}: cells of chain {chain}, but {first[0]}'s, in the same sharing "
                    f"group, are of {first[1]}; give each chain pools and a group of its own"
                )
    return first[1] if first else ""
