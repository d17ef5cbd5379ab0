"""Watch Slurm's nodes: drained, down, reserved, or in no open partition of a pool."""

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
"""Minimum pause between polls, as a multiple of the duration of a poll: a large cluster's list is
long."""


class SlurmNodeWatch:
    """Reports for each node whether Slurm starts jobs there."""

    def __init__(
        self, config: SlurmConfig, slurm: Slurm, context: BackendContext, found: SlurmInventory
    ) -> None:
        """Watch the nodes of the inventory."""
        self._config, self._slurm, self._context = config, slurm, context
        self._gpus = {name: len(gpus) for name, gpus in found.gpus}
        self._areas = found.areas
        self._due = 0.0
        self._ignored: set[str] = set()

    async def look(self) -> None:
        """Poll Slurm and report changed nodes, and partitions that are missing or closed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._due:
            return
        nodes = await self._slurm.nodes()
        partitions = {part.name: part for part in await self._slurm.partitions()}
        self._due = began + REST * (loop.time() - began)
        against = self._against(nodes, partitions)
        records = self._context.book().nodes
        for name in self._gpus:
            why, known = against.get(name, ""), records.get(name)
            before = "" if known is None else known.reasons.get(BACKEND, "")
            if known is not None and why != before:
                self._context.sink(NodeDown(name, why) if why else NodeUp(name))
        self._say(partitions)

    def _against(
        self, nodes: Sequence[SlurmNode], partitions: Mapping[str, SlurmPartition]
    ) -> dict[str, str]:
        """Return why no job starts on a node, by name; "" if jobs can start."""
        names = {self._config.partition_of(pool) for pool in self._areas}
        ours = [part for name, part in partitions.items() if name in names]
        usable = {node for part in ours if part.up for node in part.nodes}
        closed = {node for part in ours for node in part.nodes}
        there = {node.name: node for node in nodes}
        found = {}
        records = self._context.book().nodes
        for name in self._gpus:
            node = there.get(name)
            gpus = len(records[name].gpus) if name in records else self._gpus[name]
            if node is None:
                found[name] = "no longer in Slurm"
            elif node.gpus < gpus:
                found[name] = f"Slurm reports {node.gpus} GPUs instead of {gpus}"
            elif name not in closed:
                found[name] = "no longer in a partition of a pool"
            elif name not in usable:
                found[name] = "the partition is closed in Slurm"
            else:
                found[name] = node.against
        self._tell_of(set(closed) - set(self._gpus), there)
        return found

    def _tell_of(self, others: set[str], there: Mapping[str, SlurmNode]) -> None:
        """Log nodes that were added after the start."""
        new = {name for name in others if name in there and there[name].gpus} - self._ignored
        if new:
            self._ignored |= new
            log().warning("new nodes in Slurm; restart the daemon to use them", nodes=sorted(new))

    def _say(self, partitions: Mapping[str, SlurmPartition]) -> None:
        """Report the health of the backend."""
        trouble = []
        for pool in self._areas:
            name = self._config.partition_of(pool)
            if name not in partitions:
                trouble.append(f"partition {name} of pool {pool} does not exist in Slurm")
            elif not partitions[name].up:
                trouble.append(f"partition {name} is closed in Slurm")
        mend = "create it, or open it: scontrol update PartitionName=… State=UP"
        self._context.parts.say("backend", "; ".join(trouble), mend if trouble else "")
