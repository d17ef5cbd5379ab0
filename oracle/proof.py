"""The bound of one program: cuts, then trees in pieces of time, then one tree of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import perf_counter

from oracle.cuts import Cut
from oracle.forms import Model
from oracle.milp import Solved
from oracle.pieces import Piece, deal, parted
from oracle.tree import Tree

CELLS = 4500
"""Cells of a piece: with fewer, jobs lie across its ends; with more, its tree grows slowly."""

TURN = 1.0
"""Seconds for a tree, before it is the next one's turn."""


class Proof:
    """What is proven of a model: nothing costs less than `bound`."""

    def __init__(self, model: Model, until: float, stop: Callable[[], bool]) -> None:
        """Nothing yet; all ends when the clock reads `until` (seconds), or `stop` says so."""
        self._model, self._until, self._stop = model, until, stop
        self._fixed = 0.0
        self._parts: list[list[float]] = [[1.0] for _ in model.cells]
        self._whole = Tree(model, stop)
        places = [*range(len(model.cells))]
        self._everything = Piece(0, model.problem.slots, model, places, 0.0)
        self._pieces, self._trees = [self._everything], [self._whole]
        self.bound, self.impossible = 0.0, False
        self.best: list[float] | None = None
        """The cheapest choice of cells, once that is proven."""

    @property
    def nodes(self) -> int:
        """Of all trees."""
        return sum(tree.nodes for tree in self._trees)

    def parts(self) -> list[list[float]]:
        """Which part of each task starts in which cell, where the trees stand."""
        for piece, tree in zip(self._pieces, self._trees, strict=True):
            if tree.values is None:
                continue
            for place, of in zip(piece.places, piece.model.parts(tree.values), strict=True):
                if piece.begin <= self._model.problem.tasks[place].release < piece.end:
                    self._parts[place] = of
        return [*self._parts]

    def bounds(self, limit: Callable[[], float]) -> Iterator[float]:
        """Rising bounds, until all schedules are found to cost `limit` or more, or time ends."""
        whole = self._whole
        yield from self._rooted()
        if whole.rooted is not None and not whole.done:
            yield from self._in_pieces(*whole.rooted, limit)
        if all(tree.done for tree in self._trees):
            self._fixed, self._pieces, self._trees = 0.0, [self._everything], [whole]
            yield from self._grown(limit)
        cost, values = whole.whole
        self.impossible = whole.done and whole.bound == inf
        if whole.done and cost <= whole.bound < inf:
            self.best = values

    def _in_pieces(
        self, root: Solved, cuts: Sequence[Cut], limit: Callable[[], float]
    ) -> Iterator[float]:
        """Where it is large, each piece of time by its own tree."""
        at = parted(self._model, root.values or [], round(self._whole.size / CELLS))
        if at:
            self._fixed, self._pieces = deal(self._model, cuts, root.duals or [], at)
            self._trees = [Tree(p.model, self._stop, p.least) for p in self._pieces]
            yield from self._rooted()
        yield from self._grown(limit)

    def _rooted(self) -> Iterator[float]:
        for tree in self._trees:
            for _ in tree.root(self._until):
                yield self._raised()

    def _grown(self, limit: Callable[[], float]) -> Iterator[float]:
        """Each tree in turn, until none has anything left to do."""
        while not all(tree.done for tree in self._trees):
            for tree in self._trees:
                turn = perf_counter() + TURN
                while not tree.done and perf_counter() < turn:
                    if self._stop() or perf_counter() >= self._until:
                        return
                    tree.grow(tree.bound + limit() - self._sum(), self._until)
                yield self._raised()

    def _sum(self) -> float:
        return self._fixed + sum(tree.bound for tree in self._trees)

    def _raised(self) -> float:
        self.bound = max(self.bound, self._sum())
        return self.bound
