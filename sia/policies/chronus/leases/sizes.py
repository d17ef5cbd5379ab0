"""Widths are rounded up so that the jobs of a lease fit on the fewest nodes (Chronus, §3.4.1).

A job takes 1, 2 or 4 GPUs of one node, or whole nodes. If each size divides the number of GPUs of a
node, jobs of these sizes fit whenever the sum of their GPUs does (Proposition 1). Otherwise the sum
is not enough: on nodes of 6 GPUs, three jobs of 4 GPUs do not fit on two nodes. There, and if some
GPUs of a node are not available, the places of each size are counted too. Each size divides the
larger ones, so a larger job always takes the same number of smaller places, whatever its node:
counting is enough.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = (1, 2, 4)
"""Sizes within a node."""

NODE_GPUS = 8
"""GPUs of a node if there is no nodes file."""


class NodeSizes(NamedTuple):
    """The available GPUs of the nodes, and whether widths are rounded up to sizes that fit."""

    gpus: int
    """Number of GPUs that may be planned."""
    node: int = NODE_GPUS
    """GPUs of a node; of the largest one if they differ."""
    round_up: bool = True
    free: tuple[int, ...] = ()
    """Number of GPUs of each node that may be planned; empty if the nodes are not known."""

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
        """The sizes whose places must be counted: they do not divide a node evenly."""
        if not self.round_up or (not self.free and self.gpus % self.node):
            return []
        nodes = set(self.free) or {self.node}
        return [s for s in self.steps if any(gpus % s for gpus in nodes)]

    @property
    def steps(self) -> tuple[int, ...]:
        """The sizes within a node, ascending, and the whole node."""
        return (*(part for part in PARTS if part < self.node), self.node)

    def pieces(self, gpus: int, size: int) -> int:
        """Return how many places of a size a job with this rounded number of GPUs takes."""
        if size == self.node or gpus % self.node == 0:
            return gpus // self.node * (self.node // size)
        return gpus // size

    @property
    def room(self) -> tuple[int, ...]:
        """The GPUs, then the places of each counted size, that the jobs of one lease may use."""
        free = self.free or (self.node,) * (self.gpus // self.node)
        return (self.gpus, *(sum(gpus // s for gpus in free) for s in self._counted))

    def uses(self, width: int) -> tuple[int, ...]:
        """Return how much a job uses of each entry of `room`."""
        gpus = self.rounded(width)
        return (gpus, *(self.pieces(gpus, size) for size in self._counted))
