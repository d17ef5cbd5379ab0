"""Branch, price and cut: branch on whether a torn (fractional) task starts early or late.

Solvers mostly add cuts at the root. Rounding cuts are strongest once branching has fixed some wide
jobs, so this tree adds cuts at every node. Starts whose reduced cost rules out an improvement are
removed from the subtree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf, prod
from typing import NamedTuple

import numpy as np

from oracle.arrays import Counts, Floats
from oracle.bounds.cuts import MOST, TORN, CuttingPlane
from oracle.bounds.master import LpResult, Master, OutOfTimeError
from oracle.errors import BrokenScheduleError
from oracle.problem.all_starts import Starts
from oracle.problem.coarse import together

LAST, TAIL = 3, 1e-3
"""Number of rounds, and relative increase of the bound. If so many rounds raise the bound by less,
the root is left, because branching then raises the bound faster."""

NODE_ROUNDS = 3
"""Maximum number of cut rounds at a node."""

NODE_CUTS = 150
"""Maximum number of slot cuts, and of span cuts, added in a round at a node."""

RISE = 2e-5
"""Minimum relative increase of a node's bound for another round."""

CROWDED = 2
"""Number of cuts per task above which loose cuts are deleted."""

PROBED, IN_VAIN, LITTLE = 8, 4, 0.01
"""Strong branching: maximum number of tasks probed at a node; number of probes without improvement
after which probing ends; and minimum of the cost increases of the branches, which are
multiplied."""

DIVE_TASKS, DIVE_TORN, DIVE_ROUNDS = 3, 0.5, 1
"""Diving: number of tasks fixed in a step; minimum spread (slots times width) of a task that counts
as torn; and maximum number of cut rounds per step."""

SLACK = 1e-6
"""Relative tolerance with which starts are removed by reduced cost."""


class BranchNode(NamedTuple):
    """An open node: each task's first and last start, and a lower bound on the cost.

    It branches on whether `task` starts in slot `by` or before.
    """

    bound: float
    number: int
    lows: Counts
    highs: Counts
    task: int
    by: int


class Tree:
    """The branch-and-bound tree of a problem. `bound` is a lower bound on the cost."""

    def __init__(self, starts: Starts, columns: Counts, stop: Callable[[], bool]) -> None:
        """Build the master LP with the starts `columns`; solves end once `stop` returns true."""
        self.master = Master(starts, columns, stop, together(starts.problem))
        self.nodes, self.done = 0, False
        self.found: LpResult | None = None
        """The last LP solution."""
        self.whole: tuple[float, list[int]] = inf, []
        """The cost and starts of the best schedule that an LP found."""
        self._least, self._settled = -inf, inf
        self._open: list[BranchNode] = []
        self._number, self._dived = count(), -1
        most = float(np.maximum.reduceat(starts.cost, starts.first).sum())
        self._most = most + SLACK * max(1.0, most)  # upper bound on the cost of any schedule

    @property
    def bound(self) -> float:
        """The lowest bound of open and closed nodes."""
        if not self._open and not self.done:
            return self._least
        return max(self._least, min([self._settled, *(node.bound for node in self._open[:1])]))

    @property
    def new(self) -> bool:
        """Whether no dive has begun at the open node with the lowest bound."""
        return bool(self._open) and self._open[0].number != self._dived

    @property
    def parts(self) -> list[Floats]:
        """The fraction of each task at each of its starts in the last LP solution."""
        starts, found = self.master.starts, self.found
        parts = np.zeros(len(starts.task))
        if found is not None:
            parts[found.at] = found.part
        return starts.split(parts)

    def root(self, until: float) -> Iterator[float]:
        """Solve the root with cuts; yield the bound of each round until no cut is violated."""
        master, risen = self.master, list[float]()
        master.strict = together(master.starts.problem) == 1
        try:
            for rounds in count(1):
                found = self.found = master.solve(until)
                self._least = max(self._least, found.bound)
                # Loose cuts cost more time than it takes to find some of them again.
                master.delete_loose_cuts()
                yield found.bound
                risen.append(found.bound)
                flat = rounds > LAST and risen[-1] < risen[-1 - LAST] * (1.0 + TAIL)
                cuts = [] if flat else self._broken(found, MOST)
                if not cuts and (master.strict or found.fits):
                    break
                master.strict = master.strict or not cuts
                master.add(cuts)
        except OutOfTimeError:
            if self.found is None:
                return
        assert self.found is not None
        master.strict, starts = True, master.starts
        lows, highs = starts.release, starts.slot[np.append(starts.first[1:], 0) - 1]
        self._keep(self.found, lows, highs, inf, -inf)
        self.done = not self._open

    def dive(self, limit: Callable[[], float], until: float) -> Iterator[None]:
        """Dive from the node with the lowest bound: repeatedly fix torn tasks to their larger part.

        Each step fixes the tasks that start first. If the LP then reaches `limit` or a task has no
        start, the step tries the first task alone, then its other branch, and then the dive ends. A
        dive yields after each step. It proves nothing, and is made once per node.
        """
        if not self.new:
            return
        self._dived = self._open[0].number
        lows, highs = self._open[0].lows.copy(), self._open[0].highs.copy()
        fixings = iter([(lows, highs)])
        while (fixing := self._first_feasible(fixings, limit, until)) is not None:
            self.found, lows, highs = fixing
            if self.found.whole:
                self._take(self._slots(self.found))
            yield
            fixings = self._fixings(self.found, lows, highs)

    def _first_feasible(
        self, fixings: Iterator[tuple[Counts, Counts]], limit: Callable[[], float], until: float
    ) -> tuple[LpResult, Counts, Counts] | None:
        """Return the first windows with a feasible LP below `limit`, and its result, or None."""
        for lows, highs in fixings:
            self.master.limit(lows, highs)
            try:
                found = self._cut(limit(), until, DIVE_ROUNDS)
            except OutOfTimeError:
                return None
            if found.short <= TORN and found.bound < limit():
                return found, lows, highs
        return None

    def _fixings(
        self, found: LpResult, lows: Counts, highs: Counts
    ) -> Iterator[tuple[Counts, Counts]]:
        """Yield windows that fix torn tasks: several, the first one alone, its other branch."""
        spread, mean = self._torn(found)
        spread[lows >= highs] = 0.0
        torn = np.flatnonzero(spread > DIVE_TORN)
        torn = torn[np.argsort(mean[torn], kind="stable")][:DIVE_TASKS]
        alone = [(torn[:1], True)] if len(torn) > 1 else []
        for some, as_most in ((torn, True), *alone, (torn[:1], False)) if len(torn) else ():
            low, high = lows.copy(), highs.copy()
            for place in some:
                by = int(min(max(mean[place], low[place]), high[place] - 1))
                if self._early(found, place, by) is as_most:
                    high[place] = by
                else:
                    low[place] = by + 1
            yield low, high

    def grow(self, limit: float, until: float) -> None:
        """Branch at the node with the lowest bound; close nodes with a bound of `limit` or more.

        If the root was abandoned there is no node, and nothing happens.
        """
        if not self._open:
            return
        node = heappop(self._open)
        if node.bound >= limit:
            self._settled = min(self._settled, node.bound)
            self._open.clear()
        else:
            try:
                for late in (False, True):
                    self._part(node, late, limit, until)
            except OutOfTimeError:
                heappush(self._open, node)  # covers its first branch again
        self.done = not self._open

    def _part(self, node: BranchNode, late: bool, limit: float, until: float) -> None:  # noqa: FBT001
        """Solve one branch of a node."""
        lows, highs = node.lows.copy(), node.highs.copy()
        (lows if late else highs)[node.task] = node.by + late
        self.master.limit(lows, highs)
        found = self._cut(limit, until, NODE_ROUNDS)
        self.nodes += 1
        self.found = found
        self._keep(found, lows, highs, limit, node.bound)

    def _cut(self, limit: float, until: float, most: int) -> LpResult:
        """Solve the LP with up to `most` rounds of cuts."""
        master, last = self.master, None
        for rounds in range(most + 1):
            try:
                found = master.solve(until, limit)
            except OutOfTimeError:
                if last is None:
                    raise
                return last
            last_bound = -inf if last is None else last.bound
            flat = found.bound < last_bound + RISE * max(1.0, abs(found.bound))
            last = found if found.bound > last_bound or found.whole else last
            if found.bound >= limit or flat or rounds == most:
                break
            cuts = self._broken(found, NODE_CUTS)
            if not cuts:
                break
            master.add(cuts)
        if len(master.cuts) > CROWDED * len(master.starts.first):
            master.delete_loose_cuts()
        assert last is not None
        return last

    def _broken(self, found: LpResult, most: int) -> list[CuttingPlane]:
        return self.master.rows.broken(self.master.begun(found), most)

    def _keep(
        self, found: LpResult, lows: Counts, highs: Counts, limit: float, above: float
    ) -> None:
        """Close the node of an LP result, or add it to the open nodes."""
        bound = max(found.bound, above)
        if bound > self._most:
            return  # infeasible
        if bound >= limit:
            self._settled = min(self._settled, bound)
            return
        if found.whole:
            self._settle(found)
            return
        if limit < inf:
            self._settled = min(self._settled, limit)  # removed starts cost at least this
            lows, highs = self._narrowed(found, lows, highs, limit)
            if (lows > highs).any():
                return
        branch = self._branch(found, lows, highs, limit)
        if branch is not None:
            heappush(self._open, BranchNode(bound, next(self._number), lows, highs, *branch))
            return
        # One schedule is left; if windows were narrowed, the LP may not have evaluated it.
        try:
            self.master.starts.problem.check(lows.tolist())
        except BrokenScheduleError:
            return
        self._settled = min(self._settled, self._take(lows))

    def _settle(self, found: LpResult) -> None:
        """Store a schedule that is optimal in its windows, and close its node."""
        self._take(self._slots(found))
        self._settled = min(self._settled, found.bound)

    def _slots(self, found: LpResult) -> Counts:
        """Return the starts of a schedule in slots."""
        return self.master.starts.slot[found.at]

    def _take(self, slots: Counts) -> float:
        """Store a schedule if it is the best; return its cost."""
        starts = self.master.starts
        cost = float(starts.cost[starts.at(slots)].sum())
        if cost < self.whole[0]:
            self.whole = cost, slots.tolist()
        return cost

    def _early(self, found: LpResult, place: int, by: int) -> bool:
        """Return whether at least half of a task starts in slot `by` or before."""
        starts = self.master.starts
        own = starts.task[found.at] == place
        early = found.part[own & (starts.slot[found.at] <= by)].sum()
        return bool(2.0 * early >= found.part[own].sum())

    def _narrowed(
        self, found: LpResult, lows: Counts, highs: Counts, limit: float
    ) -> tuple[Counts, Counts]:
        """Return windows without starts that rule out a cost below `limit`."""
        starts = self.master.starts
        room = limit - found.bound + SLACK * max(1.0, abs(limit))
        open_ = found.dearer <= room
        first = np.where(open_, starts.slot, starts.problem.slots + 1)
        last = np.where(open_, starts.slot, -1)
        return (
            np.maximum(lows, np.minimum.reduceat(first, starts.first)),
            np.minimum(highs, np.maximum.reduceat(last, starts.first)),
        )

    def _branch(
        self, found: LpResult, lows: Counts, highs: Counts, limit: float
    ) -> tuple[int, int] | None:
        """Choose the task and the slot to branch on, by strong branching.

        The candidates are the tasks with the largest spread times width, each split at the mean of
        its starts. The choice maximises the product of the cost increases of both branches. Return
        None if no task has a choice left, so that at most one schedule remains.
        """
        spread, mean = self._torn(found)
        spread[lows >= highs] = 0.0
        torn = np.argsort(-spread, kind="stable")[:PROBED]
        torn = torn[spread[torn] > 0.0]
        if not len(torn):  # a task has no start, or torn tasks have no choice left
            place = int((highs - lows).argmax())
            by = int(lows[place] + highs[place]) // 2
            return (place, by) if lows[place] < highs[place] else None
        best, least, rank = None, -1.0, 0
        for tried, place in enumerate(torn.tolist()):
            by = int(min(max(mean[place], lows[place]), highs[place] - 1))
            rises = (
                max(LITTLE, min(cost, limit, self._most) - found.bound)
                for cost in self.master.probe(place, by)
            )
            if (product := prod(rises)) > least:
                best, least, rank = (place, by), product, tried
            if tried - rank >= IN_VAIN:
                break
        return best

    def _torn(self, found: LpResult) -> tuple[Floats, Floats]:
        """Return, by task, its spread in slots times its width, and the mean of its starts."""
        starts = self.master.starts
        task, slot, part = starts.task[found.at], starts.slot[found.at], found.part
        tasks = len(starts.first)
        total = np.bincount(task, part, tasks)
        sums = np.cumsum(part) - (np.cumsum(total) - total)[task]
        with np.errstate(invalid="ignore"):  # tasks without a start
            mean = np.bincount(task, part * slot, tasks) / total
        begun = sums / total[task]
        torn = np.minimum(begun, 1.0 - begun)[:-1]
        torn[(task[1:] != task[:-1]) | (torn < TORN)] = 0.0
        spread = np.bincount(task[:-1], torn * np.diff(slot), tasks) * starts.width
        return spread.astype(np.float64), mean.astype(np.float64)
