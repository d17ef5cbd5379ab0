"""The LP of all starts, of which it holds those that matter, and the bound that its duals prove.

Of a hundred thousand starts the LP takes a few hundred. So it is solved with those that are cheap
at good prices; then its own prices are asked of all the others, and those that are too cheap are
added, until there is none. Whatever the LP says, the bound is computed from its duals as prices of
GPUs and of places in cuts, over all starts: it does not hang on the solver's tolerance, nor on
which starts the LP holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from oracle.ascent import Priced, priced
from oracle.cuts import NOTHING, TORN, Cut
from oracle.errors import SolverError
from oracle.forms import Floats
from oracle.highs import Entries, Lp
from oracle.problem import Counts
from oracle.starts import Starts

NEAR = 0.5
"""A start that is so little dearer than its task's cheapest (slots of waiting) is added with it: it
will be asked for soon."""

FIRST_NEAR = 1.0
"""The same of prices to begin with: those are known less well."""

TOO_CHEAP = 1e-7
"""By how much a start must be too cheap: below, it is the LP's own error."""

ENOUGH = 1e-4
"""Part of the cost by which LP and bound may differ before there are cuts: another start moves the
bound by less than the next cut does."""

ROUNDS = 60
"""Of adding starts; where prices swing, what is proven by then is good enough."""


class OutOfTimeError(Exception):
    """An LP was given up."""


class Found(NamedTuple):
    """What an LP came to: nothing within its windows costs less than `bound`.

    `dearer` is by how much each start raises the bound, were it taken. `at` are the starts that the
    LP takes, in parts `part`; `short` is by how much tasks start nowhere. `exact` says that
    the bound is the LP's, rather than somewhat less.
    """

    bound: float
    dearer: Floats
    at: Counts
    part: Floats
    short: float
    exact: bool

    @property
    def whole(self) -> bool:
        """Whether each task has one start."""
        return self.short <= TORN and bool((self.part >= 1.0 - TORN).all())


class Master:
    """The LP of a problem, within windows that may be narrowed, with cuts."""

    def __init__(self, starts: Starts, columns: Counts, stop: Callable[[], bool]) -> None:
        """Begin with these starts, by place; it is given up as soon as `stop` says so."""
        self.starts = starts
        self.cuts: list[Cut] = []
        problem, tasks = starts.problem, len(starts.first)
        capacity = problem.capacity()
        self._capacity, self._slots = capacity, np.flatnonzero(problem.contended())
        self._row = np.full(problem.slots + 1, -1)
        self._row[self._slots] = tasks + np.arange(len(self._slots))
        rows = [(1.0, 1.0)] * tasks + [(-inf, float(high)) for high in capacity[self._slots]]
        self._own = len(rows)
        self._lp = Lp(rows, stop)
        self._unit = float(np.median([task.weight for task in problem.tasks]))
        # of a task that starts nowhere; above what anything else could cost, so that it is the last
        costs = starts.cost.max() * starts.width.max() + starts.width.max()
        alone: list[Entries] = [(np.array([place]), np.ones(1)) for place in range(tasks)]
        self._lp.add_columns(np.full(tasks, float(costs)), np.full(tasks, inf), alone)
        self._held, self._columns = np.zeros(len(starts.task), bool), np.zeros(0, dtype=np.int64)
        self._inside = np.ones(len(starts.task), bool)
        self._hold(columns)

    @property
    def size(self) -> int:
        """Starts that it holds."""
        return len(self._columns)

    @property
    def entries(self) -> int:
        """Their entries in all rows."""
        return self._lp.entries

    def limit(self, lows: Counts, highs: Counts) -> None:
        """Have each task start in slots low … high of its own."""
        starts = self.starts
        self._inside = (starts.slot >= lows[starts.task]) & (starts.slot <= highs[starts.task])
        nowhere = np.full(len(starts.first), inf)
        self._lp.limit(np.concatenate([nowhere, self._highs(self._columns)]))

    def add(self, cuts: Sequence[Cut]) -> None:
        """Add rows."""
        starts, columns = self.starts, self._columns
        task, slot, end = starts.task[columns], starts.slot[columns], starts.end[columns]
        for cut in cuts:
            runs = (slot <= cut.slot) & (cut.slot < end) & (cut.weights[task] != 0.0)
            at = np.flatnonzero(runs)
            self._lp.add_row(at + len(starts.first), cut.weights[task[at]], cut.high)
        self.cuts += cuts

    def throw_out(self) -> None:
        """Forget the cuts that bind nothing."""
        gone = {*self._lp.throw_out()}
        self.cuts = [cut for i, cut in enumerate(self.cuts) if i not in gone]

    def solve(self, until: float, limit: float = inf, enough: float = ENOUGH) -> Found:
        """Solve it, until the bound is `limit`, or as good as the LP's.

        Raises OutOfTimeError where the clock reads `until` (seconds) before.
        """
        best, dearer = -inf, np.zeros(0)
        for _ in range(ROUNDS):
            solved = self._lp.solve(until)
            if solved.status == "infeasible":
                raise SolverError("HiGHS: finds no solution where there is one; give --slot more")
            if solved.values is None or solved.duals is None:
                raise OutOfTimeError
            duals = np.array(solved.duals)
            costs, paid = self._priced(duals)
            costs[~self._inside] = inf
            least = self.starts.least(costs)
            bound = float(least.sum()) - paid
            if bound > best:
                best, dearer = bound, costs - least[self.starts.task]
            close = bool(solved.cost - best <= enough * abs(solved.cost))
            found = self._found(best, dearer, np.array(solved.values), exact=close)
            if best >= limit or (close and not found.whole):
                return found
            if not (least < duals[: len(least)] - TOO_CHEAP).any():
                return found._replace(exact=True)
            before = self.size
            self._hold(np.flatnonzero(costs <= (least + NEAR * self._unit)[self.starts.task]))
            if self.size == before:
                return found._replace(exact=True)
        return found

    def runs(self, found: Found) -> Floats:
        """The part of each task (column) that runs in each slot (row)."""
        starts = self.starts
        change = np.zeros((len(self._row), len(starts.first)))
        task = starts.task[found.at]
        np.add.at(change, (starts.slot[found.at], task), found.part)
        np.add.at(change, (starts.end[found.at], task), -found.part)
        return np.cumsum(change, axis=0)[:-1]

    def _hold(self, at: Counts) -> None:
        """Add starts, those that it does not hold yet."""
        at = at[~self._held[at]]
        if not len(at):
            return
        self._held[at] = True
        cut_slots = np.array([cut.slot for cut in self.cuts], dtype=np.int64)
        entries = [self._entries(int(place), cut_slots) for place in at]
        self._lp.add_columns(self.starts.cost[at], self._highs(at), entries)
        self._columns = np.concatenate([self._columns, at])

    def _highs(self, at: Counts) -> Floats:
        """No bound within windows: a row has the sum at 1, and bounds would hide its dual."""
        return np.where(self._inside[at], inf, 0.0)

    def _entries(self, at: int, cut_slots: Counts) -> Entries:
        """The rows that a start is in: its task's, those of slots, cuts."""
        starts = self.starts
        task, slot, end = int(starts.task[at]), starts.slot[at], starts.end[at]
        rows = self._row[slot:end]
        rows = rows[rows >= 0]
        cuts = np.flatnonzero((slot <= cut_slots) & (cut_slots < end))
        weights = np.array([self.cuts[i].weights[task] for i in cuts])
        cuts, weights = cuts[weights != 0.0], weights[weights != 0.0]
        width = np.full(len(rows), float(starts.width[task]))
        return np.concatenate([[task], rows, self._own + cuts]), np.concatenate(
            [[1.0], width, weights]
        )

    def _priced(self, duals: Floats) -> tuple[Floats, float]:
        """What each start costs, paying included, and what all that is sold is worth."""
        starts = self.starts
        prices = np.zeros(len(self._capacity))
        prices[self._slots] = np.maximum(0.0, -duals[len(starts.first) : self._own])
        costs, worth = priced(starts, prices), float(prices @ self._capacity)
        dual = np.maximum(0.0, -duals[self._own :])
        binding = [(cut, price) for cut, price in zip(self.cuts, dual, strict=True) if price]
        if not binding:
            return costs, worth
        slots = np.array([cut.slot for cut, _ in binding])
        order = np.argsort(slots, kind="stable")
        weights = np.array([binding[i][0].weights * binding[i][1] for i in order])
        sums = np.concatenate([np.zeros((1, weights.shape[1])), np.cumsum(weights, axis=0)])
        before = np.searchsorted(slots[order], np.arange(len(self._row)))
        costs += sums[before[starts.end], starts.task] - sums[before[starts.slot], starts.task]
        return costs, worth + float(sum(cut.high * price for cut, price in binding))

    def _found(self, bound: float, dearer: Floats, values: Floats, *, exact: bool) -> Found:
        tasks = len(self.starts.first)
        parts = values[tasks:]
        taken = np.flatnonzero(parts > NOTHING)
        order = np.argsort(self._columns[taken])
        at = self._columns[taken][order]
        short = float(values[:tasks].sum())
        return Found(bound, dearer, at, parts[taken][order], short, exact)


def columns_of(starts: Starts, prices: Priced, known: Sequence[int] | None) -> Counts:
    """The starts to begin with: those cheap at these prices, and those of a schedule."""
    costs = priced(starts, prices.prices)
    unit = float(np.median([task.weight for task in starts.problem.tasks]))
    cheap = costs - starts.least(costs)[starts.task] <= FIRST_NEAR * unit
    if known is not None:
        cheap[starts.at(np.array(known))] = True
    return np.flatnonzero(cheap)
