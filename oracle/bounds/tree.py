"""Branch, price and cut: who is torn most starts early or late, and then what do whole jobs keep?

Solvers cut at the root and branch from there. But a row that rounds the jobs of eight GPUs says
most once it is settled when some of them run: so here each node of the tree is cut anew. What
starts too late or too early for a schedule that is better than the best is left out of all nodes
below.
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
"""Where so many rounds raise the bound by no more than such a part, branches raise it faster."""

NODE_ROUNDS = 3
"""Rounds of cuts at a node."""

NODE_CUTS = 150
"""Rows added in a round at a node, of slots, and as many of spans."""

RISE = 2e-5
"""The part by which a round at a node must raise its bound for there to be another."""

CROWDED = 2
"""Added rows there may be for each task, before those that bind nothing are thrown out."""

PROBED, IN_VAIN, LITTLE = 8, 4, 0.01
"""Tasks that are probed before a node is parted at one of them; after how many in a row that are no
better than one before them the others are let be; and a rise that counts for no less."""

DIVE_TASKS, DIVE_TORN, DIVE_ROUNDS = 3, 0.5, 1
"""Of a dive: the tasks settled at once, the slots times the width over which one must be torn, and
rounds of cuts at each step."""

SLACK = 1e-6
"""In proportion: by so little a start may be too dear, and stays."""


class BranchNode(NamedTuple):
    """A part of all schedules: each task's first and last start, and what they cost at least.

    It is to be parted at a task: whether that starts in slot `by` or before.
    """

    bound: float
    number: int
    lows: Counts
    highs: Counts
    task: int
    by: int


class Tree:
    """A problem while it is solved. No schedule costs less than `bound`."""

    def __init__(self, starts: Starts, columns: Counts, stop: Callable[[], bool]) -> None:
        """Build its LP of these starts; it is given up as soon as `stop` says so."""
        self.master = Master(starts, columns, stop, together(starts.problem))
        self.nodes, self.done = 0, False
        self.found: LpResult | None = None
        """The LP's solution, where it was last solved."""
        self.whole: tuple[float, list[int]] = inf, []
        """The best schedule that an LP came to, and its cost."""
        self._least, self._settled = -inf, inf
        self._open: list[BranchNode] = []
        self._number, self._dived = count(), -1
        most = float(np.maximum.reduceat(starts.cost, starts.first).sum())
        self._most = most + SLACK * max(1.0, most)  # what all schedules cost at most

    @property
    def bound(self) -> float:
        """The lowest of what is open and what is settled."""
        if not self._open and not self.done:
            return self._least
        return max(self._least, min([self._settled, *(node.bound for node in self._open[:1])]))

    @property
    def new(self) -> bool:
        """Whether there is a lowest node, and no dive began there."""
        return bool(self._open) and self._open[0].number != self._dived

    @property
    def parts(self) -> list[Floats]:
        """The part of each task at each of its starts, where the LP stands."""
        starts, found = self.master.starts, self.found
        parts = np.zeros(len(starts.task))
        if found is not None:
            parts[found.at] = found.part
        return starts.split(parts)

    def root(self, until: float) -> Iterator[float]:
        """The bounds of rounds of cuts, until nothing is broken or the time is up."""
        master, risen = self.master, list[float]()
        master.strict = together(master.starts.problem) == 1
        try:
            for rounds in count(1):
                found = self.found = master.solve(until)
                self._least = max(self._least, found.bound)
                # those that bind nothing cost more than it takes to find some of them again
                master.throw_out()
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
        """Settle tasks that are torn in the lowest node, as the larger part of each has it.

        Those that start first first, until little is torn. Where it would cost `limit` or more, or
        somebody could start nowhere, the first of them alone is settled so, or else the other way;
        where that is no better it ends. It proves nothing, and is done once from a node.
        """
        if not self.new:
            return
        self._dived = self._open[0].number
        lows, highs = self._open[0].lows.copy(), self._open[0].highs.copy()
        ways = iter([(lows, highs)])
        while (way := self._first_way(ways, limit, until)) is not None:
            self.found, lows, highs = way
            if self.found.whole:
                self._take(self._slots(self.found))
            yield
            ways = self._ways(self.found, lows, highs)

    def _first_way(
        self, ways: Iterator[tuple[Counts, Counts]], limit: Callable[[], float], until: float
    ) -> tuple[LpResult, Counts, Counts] | None:
        """The first windows in which all start and the LP is below `limit`; what it comes to."""
        for lows, highs in ways:
            self.master.limit(lows, highs)
            try:
                found = self._cut(limit(), until, DIVE_ROUNDS)
            except OutOfTimeError:
                return None
            if found.short <= TORN and found.bound < limit():
                return found, lows, highs
        return None

    def _ways(
        self, found: LpResult, lows: Counts, highs: Counts
    ) -> Iterator[tuple[Counts, Counts]]:
        """Windows for some that are torn: all as most of each has it, or the first, or not that."""
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
        """Part the lowest node; what costs `limit` or more is of no interest.

        A tree whose root was given up has no node: it stays as it is.
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
                heappush(self._open, node)  # what its first half came to is in there once more
        self.done = not self._open

    def _part(self, node: BranchNode, late: bool, limit: float, until: float) -> None:  # noqa: FBT001
        """One half of a node."""
        lows, highs = node.lows.copy(), node.highs.copy()
        (lows if late else highs)[node.task] = node.by + late
        self.master.limit(lows, highs)
        found = self._cut(limit, until, NODE_ROUNDS)
        self.nodes += 1
        self.found = found
        self._keep(found, lows, highs, limit, node.bound)

    def _cut(self, limit: float, until: float, most: int) -> LpResult:
        """Cut where the LP stands, a few rounds."""
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
            master.throw_out()
        assert last is not None
        return last

    def _broken(self, found: LpResult, most: int) -> list[CuttingPlane]:
        return self.master.rows.broken(self.master.begun(found), most)

    def _keep(
        self, found: LpResult, lows: Counts, highs: Counts, limit: float, above: float
    ) -> None:
        """Settle what an LP came to, or open the node below it."""
        bound = max(found.bound, above)
        if bound > self._most:
            return  # there is no schedule here
        if bound >= limit:
            self._settled = min(self._settled, bound)
            return
        if found.whole:
            self._settle(found)
            return
        if limit < inf:
            self._settled = min(self._settled, limit)  # as much as what is left out here costs
            lows, highs = self._narrowed(found, lows, highs, limit)
            if (lows > highs).any():
                return
        branch = self._branch(found, lows, highs, limit)
        if branch is not None:
            heappush(self._open, BranchNode(bound, next(self._number), lows, highs, *branch))
            return
        # one schedule is left, and where windows were narrowed since, the LP may not have seen it
        try:
            self.master.starts.problem.check(lows.tolist())
        except BrokenScheduleError:
            return
        self._settled = min(self._settled, self._take(lows))

    def _settle(self, found: LpResult) -> None:
        """A whole schedule, and nothing in its windows is better."""
        self._take(self._slots(found))
        self._settled = min(self._settled, found.bound)

    def _slots(self, found: LpResult) -> Counts:
        """When each task starts in a whole schedule."""
        return self.master.starts.slot[found.at]

    def _take(self, slots: Counts) -> float:
        """Keep a schedule if it is the best; what it costs."""
        starts = self.master.starts
        cost = float(starts.cost[starts.at(slots)].sum())
        if cost < self.whole[0]:
            self.whole = cost, slots.tolist()
        return cost

    def _early(self, found: LpResult, place: int, by: int) -> bool:
        """Whether half of a task or more starts in slot `by` or before."""
        starts = self.master.starts
        own = starts.task[found.at] == place
        early = found.part[own & (starts.slot[found.at] <= by)].sum()
        return bool(2.0 * early >= found.part[own].sum())

    def _narrowed(
        self, found: LpResult, lows: Counts, highs: Counts, limit: float
    ) -> tuple[Counts, Counts]:
        """Windows without the starts with which nothing costs less than `limit`."""
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
        """The task to part the node at, and the slot.

        Of those that are torn over most slots, times their width, it is the one whose halves both
        seem to cost most. Around the mean of its starts both halves move as much of it. None where
        no task has a choice left: then there is one schedule here at most.
        """
        spread, mean = self._torn(found)
        spread[lows >= highs] = 0.0
        torn = np.argsort(-spread, kind="stable")[:PROBED]
        torn = torn[spread[torn] > 0.0]
        if not len(torn):  # somebody starts nowhere, or what is torn has no choice left
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
        """By task, over how many slots it is torn, times its width, and the mean of its starts."""
        starts = self.master.starts
        task, slot, part = starts.task[found.at], starts.slot[found.at], found.part
        tasks = len(starts.first)
        total = np.bincount(task, part, tasks)
        sums = np.cumsum(part) - (np.cumsum(total) - total)[task]
        with np.errstate(invalid="ignore"):  # of who starts nowhere
            mean = np.bincount(task, part * slot, tasks) / total
        begun = sums / total[task]
        torn = np.minimum(begun, 1.0 - begun)[:-1]
        torn[(task[1:] != task[:-1]) | (torn < TORN)] = 0.0
        spread = np.bincount(task[:-1], torn * np.diff(slot), tasks) * starts.width
        return spread.astype(np.float64), mean.astype(np.float64)
