"""How jobs are rounded up so that those of one lease fit on the fewest nodes (Chronus, §3.4.1).

A job takes 1, 2 or 4 GPUs of one node, or whole nodes. Jobs of such sizes fit whenever their GPUs
do (Proposition 1), if the node is divided by each size without rest. On nodes of 6 three jobs of 4
have 12 GPUs and do not fit on two nodes, so sizes are counted one by one there, and where some GPUs
of a node are not to be had. As each size divides the larger ones, a place that a larger job takes
is as many places less for the smaller ones, on whichever node it is: counting is enough.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = (1, 2, 4)
"""Sizes within a node."""

NODE_GPUS = 8
"""GPUs of a node where no nodes file says otherwise."""


class NodeSizes(NamedTuple):
    """The GPUs to plan with, on nodes, and whether jobs are rounded up to what fits on them."""

    gpus: int
    """GPUs of all nodes, or that may be planned with."""
    node: int = NODE_GPUS
    """GPUs of a node; of the largest one if they differ."""
    round_up: bool = True
    free: tuple[int, ...] = ()
    """GPUs of each node that may be planned with; empty if the nodes are not known."""

    def rounded(self, width: int) -> int:
        """Return the GPUs that a job of this width counts as."""
        if not self.round_up:
            return width
        for part in PARTS:
            if width <= part < self.node:
                return part
        return -(-width // self.node) * self.node

    @property
    def _counted(self) -> list[int]:
        """The sizes that must be counted beside the GPUs: they leave a rest of a node."""
        if not self.round_up or (not self.free and self.gpus % self.node):
            return []
        nodes = set(self.free) or {self.node}
        return [s for s in self.steps if any(gpus % s for gpus in nodes)]

    @property
    def steps(self) -> tuple[int, ...]:
        """The sizes within a node, ascending, and the whole node."""
        return (*(part for part in PARTS if part < self.node), self.node)

    def pieces(self, gpus: int, size: int) -> int:
        """Return how many places of a size a job of so many rounded GPUs takes."""
        if size == self.node or gpus % self.node == 0:
            return gpus // self.node * (self.node // size)
        return gpus // size

    @property
    def room(self) -> tuple[int, ...]:
        """What the jobs of one lease may use at most: GPUs, then pieces of each counted size."""
        free = self.free or (self.node,) * (self.gpus // self.node)
        return (self.gpus, *(sum(gpus // s for gpus in free) for s in self._counted))

    def uses(self, width: int) -> tuple[int, ...]:
        """Return what a job uses, one entry for each entry of `room`.

        A size that leaves a rest of a node has as many pieces a node as fit. A larger job uses
        several of them, and whole nodes use all of theirs.
        """
        gpus = self.rounded(width)
        return (gpus, *(self.pieces(gpus, size) for size in self._counted))
