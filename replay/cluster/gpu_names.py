"""Parses texts like `n3:0-3;n4:5,7`, which name GPUs of a cells file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from cells.layout.shape import Shape
from cells.layout.spec import NodeSpec, Pinned, Spec, shapes
from replay.logs.read import shown

PIECE = re.compile(r"(.+):([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)", re.DOTALL)
"""Matches a node and numbers of its GPUs. No GPU has a number of ten digits."""

BETWEEN = re.compile(r"[;\s]+")


class Chain(NamedTuple):
    """The GPUs of one chain; its nodes have the order of the file.

    GPUs are numbered through all chains, in the order of nodes and of GPUs in a node. This chain
    has the numbers from `first` on; its nodes are numbered in the same way from `first_node` on.
    """

    name: str
    shape: Shape
    nodes: Sequence[NodeSpec]
    first: int
    first_node: int

    @property
    def gpus(self) -> range:
        """Return the numbers of its GPUs."""
        return range(self.first, self.first + len(self.nodes) * self.shape.size[self.shape.node])

    def gpus_of(self, place: int) -> range:
        """Return the numbers of the GPUs of a node, given its index in `nodes`."""
        size = self.shape.size[self.shape.node]
        return range(self.first + place * size, self.first + (place + 1) * size)


class CellGpus:
    """The GPUs of a cells file, by node and number.

    Attributes:
        chains: In the order of the file.
        count: GPUs of all chains.
        nodes: Nodes of all chains.
    """

    def __init__(self, spec: Spec) -> None:
        """Index the GPUs. O(nodes). Raises CellsError; the rest of the file must be valid."""
        self.chains: list[Chain] = []
        self.count = self.nodes = 0
        self._numbers: dict[str, dict[int, int]] = {}  # of a node: place by number
        for name, shape in shapes(spec).items():
            nodes = [node for top in spec.tops if top.type == name for node in top.nodes]
            of = Chain(name, shape, nodes, self.count, self.nodes)
            for i, node in enumerate(nodes):
                places = of.gpus_of(i)
                numbers = node.gpus or range(len(places))
                self._numbers[node.name] = dict(zip(numbers, places, strict=True))
            self.chains.append(of)
            self.count += len(of.gpus)
            self.nodes += len(nodes)
        self._known: dict[str, tuple[int, ...]] = {}  # pieces repeat from job to job

    def numbers(self, node: str) -> Sequence[int]:
        """Return the numbers of a node's GPUs, in the order of their cells."""
        return [*self._numbers[node]]

    def pinned(self, pinned: Pinned) -> list[int]:
        """Return the numbers of the GPUs of a pinned cell."""
        of = [self._numbers[node] for node in pinned.nodes]
        return [numbers[gpu] for numbers in of for gpu in pinned.gpus or numbers]

    def places(self, text: str) -> list[int]:
        """Return the numbers of the GPUs that a text names. O(GPUs). Raises ValueError."""
        known, found = self._known, list[int]()
        for piece in text.split(";"):
            if piece not in known:
                known[piece] = self._read(piece)
            found += known[piece]
        return found

    def _read(self, text: str) -> tuple[int, ...]:
        return tuple(gpu for piece in filter(None, BETWEEN.split(text)) for gpu in self._one(piece))

    def _one(self, piece: str) -> list[int]:
        match = PIECE.fullmatch(piece)
        parts = [part.partition("-") for part in match[2].split(",")] if match else []
        spans = [range(int(low), int(high or low) + 1) for low, _, high in parts]
        if match is None or not all(spans):
            raise ValueError(f"{shown(piece)} names no GPUs, like n3:0-3,5")
        node, numbers = match[1], self._numbers.get(match[1])
        if numbers is None:
            raise ValueError(f"there is no node {shown(node)}")
        found = []
        for gpu in chain.from_iterable(spans):
            if gpu not in numbers:
                raise ValueError(f"node {shown(node)} has no GPU {gpu}")
            found.append(numbers[gpu])
        return found
