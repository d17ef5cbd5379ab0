"""Nodes of Slurm: drained, down, reserved, or in no partition that takes jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from daemon.backends.interface import BackendContext
from daemon.backends.slurm.config import SlurmConfig
from daemon.backends.slurm.discovery import SlurmInventory
from daemon.backends.slurm.interface import Slurm
from daemon.backends.slurm.schema import SlurmNode, SlurmPartition
from daemon.engine.nodes import BACKEND
from daemon.model.inputs import NodeDown, NodeUp
from daemon.runtime.logs import log

REST = 20.0
"""Times as long as the last look took is there until the next, at least: of a large cluster the
list is long."""


class SlurmNodeWatch:
    """Says of each node whether Slurm has jobs start there."""

    def __init__(
        self, config: SlurmConfig, slurm: Slurm, house: BackendContext, found: SlurmInventory
    ) -> None:
        """Of those that were found at the start."""
        self._config, self._slurm, self._house = config, slurm, house
        self._gpus = {name: len(gpus) for name, gpus in found.gpus}
        self._areas = found.areas
        self._due = 0.0
        self._strange: set[str] = set()

    async def look(self) -> None:
        """Say what has changed, and of partitions that are gone or closed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._due:
            return
        nodes = await self._slurm.nodes()
        partitions = {part.name: part for part in await self._slurm.partitions()}
        self._due = began + REST * (loop.time() - began)
        against = self._against(nodes, partitions)
        records = self._house.book().nodes
        for name in self._gpus:
            why, known = against.get(name, ""), records.get(name)
            before = "" if known is None else known.reasons.get(BACKEND, "")
            if known is not None and why != before:
                self._house.sink(NodeDown(name, why) if why else NodeUp(name))
        self._say(partitions)

    def _against(
        self, nodes: Sequence[SlurmNode], partitions: Mapping[str, SlurmPartition]
    ) -> dict[str, str]:
        """Why no job starts on a node, by name; empty where jobs do."""
        names = {self._config.partition_of(pool) for pool in self._areas}
        ours = [part for name, part in partitions.items() if name in names]
        usable = {node for part in ours if part.up for node in part.nodes}
        closed = {node for part in ours for node in part.nodes}
        there = {node.name: node for node in nodes}
        found = {}
        for name, gpus in self._gpus.items():
            node = there.get(name)
            if node is None:
                found[name] = "Slurm has no such node any more"
            elif node.gpus < gpus:
                found[name] = f"Slurm counts {node.gpus} GPUs on it, and it had {gpus}"
            elif name not in closed:
                found[name] = "is in no partition of a pool any more"
            elif name not in usable:
                found[name] = "its partition is closed in Slurm"
            else:
                found[name] = node.against
        self._tell_of(set(closed) - set(self._gpus), there)
        return found

    def _tell_of(self, others: set[str], there: Mapping[str, SlurmNode]) -> None:
        """Log of nodes that came since the start."""
        new = {name for name in others if name in there and there[name].gpus} - self._strange
        if new:
            self._strange |= new
            log().warning("new nodes in Slurm: restart to use them", nodes=sorted(new))

    def _say(self, partitions: Mapping[str, SlurmPartition]) -> None:
        """How the backend is, all asked."""
        trouble = []
        for pool in self._areas:
            name = self._config.partition_of(pool)
            if name not in partitions:
                trouble.append(f"Slurm has no partition {name} any more, which is pool {pool}'s")
            elif not partitions[name].up:
                trouble.append(f"partition {name} takes no jobs in Slurm")
        mend = "make it in Slurm again, or open it: scontrol update PartitionName=… State=UP"
        self._house.parts.say("backend", "; ".join(trouble), mend if trouble else "")
