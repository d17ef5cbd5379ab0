"""The master LP: column and row generation over all starts, with a bound from the duals.

Of a hundred thousand possible starts the LP needs a few hundred. It begins with starts that are
cheap at good prices of GPUs. Then all other starts are priced with the LP's duals, and the starts
with a negative reduced cost are added, until there are none. The bound is computed from the duals,
which are prices of GPUs and of cuts, over all starts. So the bound is valid regardless of the
solver's tolerance and of the columns in the LP.

Capacity rows are also generated. The LP begins with the rows that its starts could violate; other
rows are added as cuts when a solution violates them. With many slots, a capacity row is the sum
over several slots; violations within it are repaired only while `strict` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from oracle.arrays import Counts, Floats
from oracle.bounds.ascent import Priced, priced
from oracle.bounds.cuts import NO_SLOT, NOTHING, TORN, Cuts, CuttingPlane
from oracle.problem.all_starts import Starts
from oracle.solver.highs import Entries, Lp
from sia.contract.solvers import SolverError

NEAR = 0.5
"""Cost, in slots of waiting. Starts of a task that are dearer than its cheapest start by at most
this are added together with it, because they would be added soon anyway."""

FIRST_NEAR = 1.0
"""The same cost for the initial prices, which are less accurate."""

TOO_CHEAP = 1e-7
"""Smallest absolute value of a negative reduced cost for which a start is added. Smaller values are
numerical errors of the LP."""

ENOUGH = 1e-4
"""Relative difference of the LP's value and the bound at which pricing ends. Then cuts raise the
bound more than further starts do."""

ROUNDS = 60
"""Maximum number of pricing rounds. If the prices still oscillate, the bound so far is used."""


class OutOfTimeError(Exception):
    """The LP was abandoned because of the time limit or `stop`."""


class LpResult(NamedTuple):
    """The result of an LP. `bound` is a lower bound on the cost within the start windows.

    `dearer` is the reduced cost of each start. `at` are the starts in the solution, and `part`
    their fractions. `short` is the total fraction of tasks without a start. `exact` means that the
    bound is the LP's optimum, and `fits` that no slot exceeds its capacity.
    """

    bound: float
    dearer: Floats
    at: Counts
    part: Floats
    short: float
    exact: bool
    fits: bool = True

    @property
    def whole(self) -> bool:
        """Whether the solution is a schedule."""
        return self.fits and self.short <= TORN and bool((self.part >= 1.0 - TORN).all())


class _InCuts(NamedTuple):
    """The terms of all cuts, sorted by task: task, start range, weight, and index of the cut."""

    task: Counts
    low: Counts
    high: Counts
    weight: Floats
    cut: Counts


class Master:
    """The master LP of a problem, with cuts and adjustable start windows."""

    def __init__(
        self, starts: Starts, columns: Counts, stop: Callable[[], bool], together: int = 1
    ) -> None:
        """Build the LP with the starts `columns` (indices).

        Solves end once `stop` returns true. A capacity row is the sum over `together` slots.
        """
        self.starts = starts
        self.cuts: list[CuttingPlane] = []
        self.rows = Cuts(starts, stop)
        self.strict = True
        problem, tasks = starts.problem, len(starts.first)
        self._capacity = capacity = problem.capacity()
        self._together = together
        piece = np.arange(problem.slots) // self._together
        some = np.unique(piece[_at_most(starts, columns) > capacity])
        sums = np.bincount(piece, capacity)
        row = np.full(len(sums), -1)
        row[some] = tasks + np.arange(len(some))
        self._row = np.append(row[piece], -1)
        self._slots = np.flatnonzero(self._row >= 0)
        rows = [(1.0, 1.0)] * tasks + [(-inf, float(high)) for high in sums[some]]
        self._own = len(rows)
        self._lp = Lp(rows, stop)
        self._unit = float(np.median([task.weight for task in problem.tasks]))
        # Penalty for a task without a start, above any other cost so that it is a last resort.
        costs = starts.cost.max() * starts.width.max() + starts.width.max()
        alone: list[Entries] = [(np.array([place]), np.ones(1)) for place in range(tasks)]
        self._lp.add_columns(np.full(tasks, float(costs)), np.full(tasks, inf), alone)
        self._columns = np.zeros(0, dtype=np.int64)
        self._held = np.zeros(len(starts.task), bool)
        self._order = self._columns
        self._table: _InCuts | None = None
        self._inside = np.ones(len(starts.task), bool)
        self._hold(columns)

    @property
    def size(self) -> int:
        """Number of starts in the LP."""
        return len(self._columns)

    @property
    def entries(self) -> int:
        """Number of coefficients."""
        return self._lp.entries

    def limit(self, lows: Counts, highs: Counts) -> None:
        """Restrict each task to starts in its slots low to high."""
        starts = self.starts
        self._inside = (starts.slot >= lows[starts.task]) & (starts.slot <= highs[starts.task])
        nowhere = np.full(len(starts.first), inf)
        self._lp.limit(np.concatenate([nowhere, self._highs(self._columns)]))

    def probe(self, place: int, by: int) -> tuple[float, float]:
        """Estimate the costs of both branches of a task: start in slot `by` or before, or later.

        The estimate uses a few iterations and only the starts in the LP; it is not a bound.
        """
        own = np.flatnonzero(self.starts.task[self._columns] == place)
        at = self._columns[own]
        early, before = self.starts.slot[at] <= by, self._highs(at)
        halves = np.where(early, before, 0.0), np.where(early, 0.0, before)
        early_cost, late_cost = self._lp.probe(own + len(self.starts.first), halves, before)
        return early_cost, late_cost

    def add(self, cuts: Sequence[CuttingPlane]) -> None:
        """Add cuts."""
        if not cuts:
            return
        entries, places = list[Entries](), self._columns[self._order]
        for cut in cuts:
            at = self.starts.first[cut.task] - self.starts.release[cut.task]
            begin, end = np.searchsorted(places, [at + cut.low, at + cut.high + 1])
            counts = end - begin
            which = np.repeat(np.arange(len(at)), counts)
            inside = np.arange(len(which)) + (begin - np.cumsum(counts) + counts)[which]
            entries.append((self._order[inside] + len(self.starts.first), cut.weight[which]))
        self._lp.add_rows(entries, np.array([cut.most for cut in cuts]))
        self.cuts += cuts
        self._table = None

    def delete_loose_cuts(self) -> None:
        """Delete the cuts that are not binding."""
        loose = {*self._lp.delete_loose_rows()}
        self.cuts = [cut for i, cut in enumerate(self.cuts) if i not in loose]
        self._table = None

    def solve(self, until: float, limit: float = inf, enough: float = ENOUGH) -> LpResult:
        """Solve the LP until its bound reaches `limit` or the LP's optimum within `enough`.

        Raises OutOfTimeError when the clock reads `until` (seconds).
        """
        best, dearer = -inf, np.zeros(0)
        for _ in range(ROUNDS):
            solved = self._lp.solve(until)
            if solved.status == "infeasible":
                raise SolverError("HiGHS: reports a feasible LP as infeasible; use a longer --slot")
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
            crowded = self._crowded(found)
            found = found._replace(fits=not crowded, exact=close and not crowded)
            fits = found.fits or not self.strict
            if best >= limit or (close and fits and not found.whole):
                return found
            if not fits:
                self.add(crowded)
            before = self.size
            if (least < duals[: len(least)] - TOO_CHEAP).any():
                self._hold(np.flatnonzero(costs <= (least + NEAR * self._unit)[self.starts.task]))
            if self.size == before and fits:
                return found._replace(exact=True)
        return found

    def _crowded(self, found: LpResult) -> list[CuttingPlane]:
        """Return the capacity rows that are not in the LP and that the solution violates."""
        starts = self.starts
        change, used = np.zeros(len(self._row)), starts.width[starts.task[found.at]] * found.part
        np.add.at(change, starts.slot[found.at], used)
        np.add.at(change, starts.end[found.at], -used)
        over = np.cumsum(change)[:-1] > self._capacity + TORN * (1.0 + self._capacity)
        if self._together == 1:
            over[self._slots] = False
        over[[cut.slot for cut in self.cuts if cut.slot != NO_SLOT]] = False
        return [self.rows.capacity(i) for i in np.flatnonzero(over).tolist()]

    def begun(self, found: LpResult) -> Floats:
        """Return the fraction of each task that has started by each slot, shape (slots, tasks)."""
        starts = self.starts
        begun = np.zeros((len(self._row), len(starts.first)))
        np.add.at(begun, (starts.slot[found.at], starts.task[found.at]), found.part)
        return np.cumsum(begun, axis=0)

    def _hold(self, at: Counts) -> None:
        """Add starts that are not in the LP yet."""
        at = at[~self._held[at]]
        if not len(at):
            return
        self._held[at] = True
        entries = [self._entries(int(place)) for place in at]
        self._lp.add_columns(self.starts.cost[at], self._highs(at), entries)
        self._columns = np.concatenate([self._columns, at])
        self._order = np.argsort(self._columns)

    def _highs(self, at: Counts) -> Floats:
        """Return the upper bounds of these starts: infinity in the windows.

        The task row bounds the sum of a task's starts. Finite upper bounds would change the duals.
        """
        return np.where(self._inside[at], inf, 0.0)

    def _entries(self, at: int) -> Entries:
        """Return the rows and coefficients of a start: task row, capacity rows, cuts."""
        starts, in_cuts = self.starts, self._in_cuts()
        task, slot, end = int(starts.task[at]), int(starts.slot[at]), int(starts.end[at])
        rows, counts = np.unique(self._row[slot:end], return_counts=True)
        rows, counts = rows[rows >= 0], counts[rows >= 0]
        own = slice(*np.searchsorted(in_cuts.task, [task, task + 1]))
        inside = (in_cuts.low[own] <= slot) & (slot <= in_cuts.high[own])
        return np.concatenate([[task], rows, self._own + in_cuts.cut[own][inside]]), np.concatenate(
            [[1.0], counts * float(starts.width[task]), in_cuts.weight[own][inside]]
        )

    def _in_cuts(self) -> _InCuts:
        """Return the terms of all cuts."""
        if self._table is None:
            cuts, none = self.cuts, np.zeros(0, dtype=np.int64)
            task = np.concatenate([none, *(cut.task for cut in cuts)])
            order = np.argsort(task, kind="stable")
            self._table = _InCuts(
                task[order],
                np.concatenate([none, *(cut.low for cut in cuts)])[order],
                np.concatenate([none, *(cut.high for cut in cuts)])[order],
                np.concatenate([none, *(cut.weight for cut in cuts)])[order],
                np.repeat(np.arange(len(cuts)), [len(cut.task) for cut in cuts])[order],
            )
        return self._table

    def _priced(self, duals: Floats) -> tuple[Floats, float]:
        """Return each start's cost plus prices, and the total value of capacities and cuts."""
        starts = self.starts
        prices = np.zeros(len(self._capacity))
        prices[self._slots] = np.maximum(0.0, -duals[self._row[self._slots]])
        costs, worth = priced(starts, prices), float(prices @ self._capacity)
        dual = np.maximum(0.0, -duals[self._own :])
        if not dual.any():
            return costs, worth
        task, low, high, weight, cut = self._in_cuts()
        paid, at, size = weight * dual[cut], starts.first - starts.release, len(costs) + 1
        change = np.bincount(low + at[task], paid, size)
        change -= np.bincount(high + at[task] + 1, paid, size)
        costs += np.cumsum(change)[:-1]
        return costs, worth + float(dual @ np.array([cut.most for cut in self.cuts]))

    def _found(self, bound: float, dearer: Floats, values: Floats, *, exact: bool) -> LpResult:
        tasks = len(self.starts.first)
        parts = values[tasks:]
        taken = np.flatnonzero(parts > NOTHING)
        order = np.argsort(self._columns[taken])
        at = self._columns[taken][order]
        short = float(values[:tasks].sum())
        return LpResult(bound, dearer, at, parts[taken][order], short, exact)


def _at_most(starts: Starts, columns: Counts) -> Counts:
    """Return the GPUs by slot if each task used every slot that one of these starts covers."""
    columns = np.sort(columns)
    task, slot, end = starts.task[columns], starts.slot[columns], starts.end[columns]
    fresh = np.ones(len(columns), bool)
    fresh[1:] = (task[1:] != task[:-1]) | (slot[1:] > end[:-1])
    change = np.zeros(starts.problem.slots + 1, dtype=np.int64)
    np.add.at(change, slot[fresh], starts.width[task[fresh]])
    last = np.append(fresh[1:], True)[: len(columns)]
    np.add.at(change, end[last], -starts.width[task[last]])
    return np.cumsum(change)[:-1]


def columns_of(starts: Starts, prices: Priced, known: Sequence[int] | None) -> Counts:
    """Return the initial starts: those cheap at these prices, and those of a known schedule."""
    costs = priced(starts, prices.prices)
    unit = float(np.median([task.weight for task in starts.problem.tasks]))
    cheap = costs - starts.least(costs)[starts.task] <= FIRST_NEAR * unit
    if known is not None:
        cheap[starts.at(np.array(known))] = True
    return np.flatnonzero(cheap)
