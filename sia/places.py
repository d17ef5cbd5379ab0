"""Which cells the jobs of a state are in (§5.5): all that the core asks of `cells`.

GPUs are counted by the state, as ever; a place is what a start needs besides. A spare job's loans
say whose GPUs it uses, its place where it runs: the two need not be the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from cells.answers import Request
from cells.cells import Cells
from cells.holds import Holds
from sia.limits import MAX_QUOTA
from sia.model import Nodes, Stream

CellQuota = Mapping[str, Mapping[str, int]]
"""Cells that a pool owns, by chain and type."""


class Places:
    """The cells of one cluster, in terms of pools and jobs.

    A pool owns cells of one chain, as do all pools of a sharing group. Pools outside a spare job's
    group keep all that they own, besides what a policy has anybody hold back.
    """

    def __init__(self, cells: Cells, groups: Sequence[Mapping[str, int]]) -> None:
        """Take the quota (GPUs) of each pool, by name, of each sharing group.

        Raises ValueError where pools and cells contradict each other.
        """
        self._cells = cells
        self._groups = groups
        self._chains: dict[str, str] = {}  # of the pools that have cells
        self._requests: dict[tuple[str, int], Request] = {}
        self._apart: dict[str, tuple[Holds, ...]] = {}
        owned = cells.owns()
        quotas = dict(chain.from_iterable(group.items() for group in groups))
        for pool in owned:
            if pool not in quotas:
                raise ValueError(f"quota.{pool}: no pool has this name; name one that is there")
        for pool, quota in quotas.items():
            self._settle(pool, quota, owned.get(pool, {}))
        self._keep_apart()

    def _settle(self, pool: str, quota: int, owned: Mapping[str, int]) -> None:
        """Note the chain of a pool. Raises ValueError."""
        gpus = sum(owned.values())
        if gpus != quota:
            raise ValueError(
                f"quota.{pool}: cells of {gpus} GPUs, but the pool's quota is {quota}; make them "
                "the same"
            )
        if len(owned) > 1:
            raise ValueError(
                f"quota.{pool}: cells of chains {', '.join(owned)}; a pool's are of one: split it"
            )
        for name in owned:
            if self._chains.setdefault(pool, name) != name:
                raise ValueError(f"quota.{pool}: a pool stays in its chain; keep it there")
        group = next(group for group in self._groups if pool in group)
        for other in group:
            if self._chains.get(other, self._chains.get(pool)) != self._chains.get(pool, ""):
                raise ValueError(
                    f"quota.{pool}: cells of chain {self._chains[pool]}, but {other}'s, in its "
                    f"sharing group, are of {self._chains[other]}; give them groups of their own"
                )

    def _keep_apart(self) -> None:
        """For each pool's spare jobs: who of its chain is in another group and keeps all it has."""
        for group in self._groups:
            mine = [pool for pool in group if pool in self._chains]
            strangers = [
                pool
                for pool, name in self._chains.items()
                if pool not in group and mine and name == self._chains[mine[0]]
            ]
            holds: tuple[Holds, ...] = ()
            if strangers:
                holds = (self._cells.holds(self._chains[mine[0]]),)
            for pool in strangers:
                holds[0].set(pool, MAX_QUOTA)
            self._apart |= dict.fromkeys(mine, holds)

    def _request(self, pool: str, width: int) -> Request:
        request = self._requests.get((pool, width))
        if request is None:
            request = Request(pool, (width,), self._chains[pool])
            self._requests[pool, width] = request
        return request

    def take(
        self, job_id: str, pool: str, width: int, stream: Stream, holds: Sequence[Holds] = ()
    ) -> Nodes | None:
        """Give a job cells: of its pool's quota, or spare ones that leave all `holds` kept.

        None, with nothing changed, if there are none for it now.
        """
        if pool not in self._chains:
            return None
        request = self._request(pool, width)
        if stream is Stream.DEDICATED:
            placement = self._cells.allocate(job_id, request)
        else:
            placement = self._cells.lend(job_id, request, (*self._apart[pool], *holds))
        return None if placement is None else placement.nodes

    def free(self, job_id: str) -> None:
        """Take back a job's cells."""
        self._cells.free(job_id)

    def in_the_way(self, pool: str, width: int) -> tuple[str, ...]:
        """Spare jobs that a dedicated start waits for; none where it waits for something else."""
        if pool not in self._chains:
            return ()
        blocked = self._cells.blockers(self._request(pool, width))
        return () if blocked is None else blocked.spare_jobs

    def could(self, pool: str, width: int) -> bool:
        """Whether a pool's cells have room for such a job, when nothing else runs in them."""
        return pool in self._chains and self._cells.could(self._request(pool, width))

    def gpus(self, pool: str, width: int) -> int:
        """GPUs that a job takes: its width rounded up to cells."""
        return self._cells.width(width, self._chains[pool]) if pool in self._chains else width

    def narrower(self, pool: str, width: int) -> int:
        """The greatest width that takes fewer; 0 if none does."""
        return self._cells.narrower(width, self._chains[pool])

    def holds(self, pool: str) -> Holds:
        """What a policy holds back in one window, in the chain of a pool that has cells."""
        return self._cells.holds(self._chains[pool])

    def take_out(self, node: str, why: str) -> None:
        """A node is bad, or drained: jobs on it stay, no more come. Raises ValueError."""
        self._cells.take_out(node, why)

    def bring_back(self, node: str) -> None:
        """A node is well again. Raises ValueError."""
        self._cells.bring_back(node)

    def requota(self, pool: str, quota: int, cells: CellQuota) -> None:
        """Give a pool other cells. Raises ValueError, with nothing changed."""
        quotas: dict[str, CellQuota] = {**self._cells.quotas()}
        quotas.pop(pool, None)
        if cells:
            quotas[pool] = cells
        tried = self._cells.copy()
        tried.set_quotas(quotas)
        self._settle(pool, quota, tried.owns().get(pool, {}))
        self._cells.set_quotas(quotas)
        self._keep_apart()

    def check(self, running: Mapping[str, tuple[Stream, int]]) -> None:
        """Assert that these jobs, of so many GPUs each, and no others have cells; O(cells)."""
        self._cells.check()
        assert self._cells.jobs() == {
            job_id: stream is Stream.SPARE for job_id, (stream, _) in running.items()
        }
        for job_id, (_, width) in running.items():
            nodes = self._cells.placement(job_id).nodes
            assert sum(len(gpus) for _, gpus in nodes) == width, job_id
