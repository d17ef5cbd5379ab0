"""Branch and cut: who is torn most starts early or late, and then what do whole jobs keep?

Solvers cut at the root and branch from there. But a row that rounds the jobs of eight GPUs says
most once it is settled when some of them run: so here each node of the tree is cut anew. Of a
block of 161 jobs that HiGHS alone had at 267 slots after a minute and 156 nodes, a hundred such
nodes prove 285.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

import numpy as np

from oracle.cuts import TORN, Cut, Cuts
from oracle.forms import Floats, Model
from oracle.highs import Lp
from oracle.milp import Solved

ROUNDS = 8
"""Rounds of cuts after which those that bind nothing are thrown out."""

LAST, TAIL = 4, 1e-3
"""Where so many rounds raise the bound by no more than such a part, branches raise it faster."""

NODE_ROUNDS = 3
"""Rounds of cuts at a node."""

NODE_CUTS = 150
"""Rows added in a round at a node."""

RISE = 0.02
"""By how much a round at a node must raise its bound for there to be another, in slots."""

CROWDED = 3
"""Cuts there may be for each task, before those that bind nothing are thrown out."""

AHEAD = 1.0
"""How far above the lowest node its tree is followed down, in slots: it is solved in a few steps
from where the LP stands."""


class _OutOfTimeError(Exception):
    """An LP was given up."""


class Branch(NamedTuple):
    """Where to cut a task's cells in two: after this one."""

    place: int
    cell: int


class Node(NamedTuple):
    """A part of all schedules: each task's first and last cell, and what they cost at least."""

    bound: float
    number: int
    lows: list[int]
    highs: list[int]
    branch: Branch


class Tree:
    """A program while it is solved. No schedule of its cells costs less than `bound`."""

    def __init__(self, model: Model, stop: Callable[[], bool], least: float = -inf) -> None:
        """Build its LP; `least` is a bound that is known."""
        self.model, self.nodes, self.done = model, 0, False
        self.cuts: list[Cut] = []
        self.values: list[float] | None = None
        """The LP's, where it was last solved."""
        self.whole: tuple[float, list[float]] = inf, []
        """The cheapest choice of one cell for each task, and what it costs."""
        self.rooted: tuple[Solved, list[Cut]] | None = None
        """The root's last LP, and the cuts in it."""
        self._least, self._settled, self._stop = least, inf, stop
        self._open: list[Node] = []
        self._number = count()
        at = np.cumsum([0, *(len(cells) for cells in model.cells)])
        self._spans = [*zip(at.tolist(), at[1:].tolist(), strict=False)]
        self._widths = np.array([task.width for task in model.problem.tasks])
        self._cuts = Cuts(model)
        if not model.milp.costs:  # nobody has a choice
            cost = inf if model.milp.impossible else model.milp.offset
            self.done, self._settled, self.whole = True, cost, (cost, [])
            return
        self._lp = Lp(model.milp, stop)

    @property
    def bound(self) -> float:
        """The lowest of what is open and what is settled."""
        if not self._open and not self.done:
            return self._least
        return max(self._least, min([self._settled, *(node.bound for node in self._open[:1])]))

    @property
    def size(self) -> int:
        """Cells of all tasks."""
        return sum(len(cells) for cells in self.model.cells)

    def root(self, until: float) -> Iterator[Solved]:
        """The LPs of rounds of cuts, until nothing is broken or the time is up."""
        last, risen = None, list[float]()
        for rounds in count(1) if not self.done else ():
            found = self._lp.solve(until)
            if found.values is None:
                self.done = found.status == "infeasible"
                break
            last = found
            self.values, self._least = found.values, max(self._least, found.bound)
            self.rooted = found, [*self.cuts]
            if not rounds % ROUNDS:
                self._throw_out()
            cuts = self._cuts.broken(found.values)
            yield found
            risen.append(found.bound)
            flat = rounds > LAST and risen[-1] < risen[-LAST] * (1.0 + TAIL)
            if flat or not cuts:
                break
            self._add(cuts)
        if last is not None:
            highs = [len(cells) - 1 for cells in self.model.cells]
            node = self._keep(last, [0] * len(highs), highs, inf)
            self._open = [] if node is None else [node]
            self.done = node is None

    def grow(self, limit: float, until: float) -> None:
        """Branch from the lowest node down; what costs `limit` or more is of no interest.

        A tree whose root was given up has no node: it stays as it is.
        """
        if not self._open:
            return
        while self._open and not self._stop():
            node = heappop(self._open)
            if node.bound >= limit:
                self._settled = min(self._settled, node.bound)
                self._open.clear()
                break
            try:
                both = [self._part(node, late, limit, until) for late in (False, True)]
            except _OutOfTimeError:
                heappush(self._open, node)
                return
            below = [kept for kept in both if kept is not None]
            for kept in below:
                heappush(self._open, kept)
            if not below or min(below).bound > self._open[0].bound + AHEAD:
                break
        self.done = not self._open

    def _part(self, node: Node, late: bool, limit: float, until: float) -> Node | None:  # noqa: FBT001
        """One half of a node, if it is open."""
        place, cell = node.branch
        lows, highs = [*node.lows], [*node.highs]
        if late:
            lows[place] = cell + 1
        else:
            highs[place] = cell
        self._lp.limit(*self.model.limits(lows, highs))
        found = self._cut(limit, until)
        self.nodes += 1
        if found is None:
            return None
        self.values = found.values
        return self._keep(found, lows, highs, limit, node.bound)

    def _cut(self, limit: float, until: float) -> Solved | None:
        """Cut where the LP stands, a few rounds; None if there is no schedule."""
        before, last = -inf, None
        for rounds in range(NODE_ROUNDS + 1):
            found = self._lp.solve(until)
            if found.status == "infeasible":
                return None
            if found.values is None:
                if last is None:
                    raise _OutOfTimeError
                return last
            last = found
            if found.bound >= limit or found.bound < before + RISE or rounds == NODE_ROUNDS:
                break
            before = found.bound
            cuts = self._cuts.broken(found.values)[:NODE_CUTS]
            if not cuts:
                break
            self._add(cuts)
        if len(self.cuts) > CROWDED * len(self.model.cells):
            self._throw_out()
        return last

    def _keep(
        self, found: Solved | None, lows: list[int], highs: list[int], limit: float,
        above: float = -inf,
    ) -> Node | None:  # fmt: skip
        """The node of an LP's solution, if something is torn there and it costs less than that."""
        if found is None or found.values is None:
            return None
        bound = max(found.bound, above)
        branch = self._torn_most(found.values) if bound < limit else None
        if branch is None:
            if bound < self._settled and bound < limit:
                self.whole = bound, found.values
            self._settled = min(self._settled, bound)
            return None
        return Node(bound, next(self._number), lows, highs, branch)

    def _torn_most(self, values: Sequence[float]) -> Branch | None:
        """The task that is torn over most slots, times its width, and where to part it."""
        begun = self.model.begun(values)
        torn = np.minimum(begun, 1.0 - begun)
        torn[torn < TORN] = 0.0
        spread = np.add.reduceat(torn, [low for low, _ in self._spans]) * self._widths
        place = int(spread.argmax())
        if spread[place] <= 0.0:
            return None
        low, high = self._spans[place]
        return Branch(place, _middle(begun[low:high], torn[low:high]))

    def _add(self, cuts: Sequence[Cut]) -> None:
        self._lp.add([cut.row for cut in cuts])
        self.cuts += cuts

    def _throw_out(self) -> None:
        gone = {*self._lp.throw_out()}
        self.cuts = [cut for i, cut in enumerate(self.cuts) if i not in gone]


def _middle(begun: Floats, torn: Floats) -> int:
    """The cell after which to part a task, so that both halves move as much of it as can be."""
    earlier, later = np.cumsum(begun), np.cumsum((1.0 - begun)[::-1])[::-1]
    return int((np.minimum(earlier, later) * (torn > 0.0)).argmax())
