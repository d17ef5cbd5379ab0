"""Solve one problem within a time limit: find a good schedule and prove a lower bound.

One thread, the prover, runs the solver and raises the bound. The main thread searches for schedules
and uses the LP solutions of the prover as soon as they are available.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from sys import getswitchinterval, setswitchinterval
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from oracle.arrays import Floats
from oracle.bounds.ascent import ascend
from oracle.bounds.lp import safe
from oracle.bounds.slot_cells import FIRST, Fitted, fitted, horizons_of
from oracle.errors import NoScheduleError
from oracle.problem.all_starts import fits, starts_of
from oracle.problem.coarse import coarser, in_order
from oracle.problem.forms import Form
from oracle.problem.problem import Problem
from oracle.search.answer import ProgressCallback, SolveResult, SolverProgress
from oracle.search.incumbent import Incumbent
from oracle.search.polish import PART, Polish, hinted
from oracle.search.scheduling_rounds import SchedulingRounds
from oracle.search.search import Search, from_parts
from oracle.solver.solvers import has_highs
from sia.contract.solvers import solve
from sia.program import TOLERANCE

if TYPE_CHECKING:
    from oracle.bounds.tree import Tree

CLOSE = 2.5 * TOLERANCE
"""Relative gap below which a schedule counts as optimal. The proven bound is reduced by one
tolerance, and the solver's cost can be wrong by another one."""

POLL = 2.0
"""Seconds between two checks of the solver if there is nothing to search."""

LISTS, ROUND = 3.0, 10.0
"""Seconds for list schedules from the LP, and seconds for a round of local search or of
programs."""

COARSE_SHARE = 0.5
"""Share of the time for the coarse problem, if there are many slots. A dive and the programs after
it take 300 s, and in the fine problem the bound hardly rises after 250 s."""

PATIENCE = 5.0
"""Seconds that the search waits for the first result of the prover."""

DIVE, DIVE_SHARE = 0.02, 0.5
"""Relative gap above which dives alternate with branching, and maximum share of the remaining time
for a dive. With a smaller gap, proving is more useful. After dives without improvement, branching
gets more time. Most improvements come from the late steps of a dive."""

ROOT_SHARE, PAUSE = 0.1, 0.2
"""Share of the time for which the search pauses during the cuts at the root, and seconds between
two checks whether the pause is over. The search also pauses during dives, because the LP runs at
half speed beside the search. During a pause it only builds list schedules from time to time."""

SWITCH = 2e-4
"""Interpreter switch interval in seconds. The prover needs the interpreter between numpy calls of
about this length; with the default it would wait 5 ms each time."""

GRACE = 5.0
"""Maximum seconds to wait for the solver to stop. An LP of the tree cannot be interrupted; after
this time its thread is abandoned."""


class SearchHooks(NamedTuple):
    """Callbacks of a coarse solve: whether to stop, and a receiver of better schedules."""

    over: Callable[[], bool]
    improved: Callable[[Sequence[int]], object]


class Solving:
    """The solving of one problem."""

    def __init__(
        self,
        problem: Problem,
        form: Form,
        until: float,
        start: Sequence[int] | None = None,
        seed: int = 0,
        progress: ProgressCallback | None = None,
        within: SearchHooks | None = None,
    ) -> None:
        """Solve `problem` until the clock reads `until` (seconds), from `start` if there is one."""
        self.problem, self.bound, self._within = problem, 0.0, within
        self._best = Incumbent(problem)
        # The search ignores unfairness, so with beta it has its own incumbent.
        self._draft = Incumbent(replace(problem, beta=0.0)) if problem.beta else self._best
        if start is not None:
            self._offer(start)
        self._form, self._until, self._seed, self._progress = form, until, seed, progress
        self._stop, self._lp_ready, self._coarse_over = Event(), Event(), Event()
        self._ended = Event()  # in Python 3.11 an interrupted join marks the thread as ended
        self._parts: Sequence[Sequence[float]] | None = None
        self._hints: list[list[int]] = []
        self._fresh, self._turns = False, SchedulingRounds()
        self._listed = self._paused_until = -inf
        self._polish = Polish(self._draft.problem, form, seed)
        self._size, self._nodes = (0, 0), 0
        self._error: Exception | None = None
        self.interrupted = False  # by Ctrl-C

    def run(self) -> SolveResult:
        """Solve the problem. Ctrl-C or a crash of the solver ends it with the best result so far.

        Raises NoScheduleError if there is no schedule, and the solver's error if it crashed before
        a schedule was found.
        """
        before = getswitchinterval()
        try:
            Thread(target=self._guarded, daemon=True).start()
            self._from_coarse()
            setswitchinterval(SWITCH)
            self._search()
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception as error:  # noqa: BLE001  keep the result so far
            self._error = error
        finally:
            setswitchinterval(before)
        self._stop.set()
        self._coarse_over.set()
        try:
            self._ended.wait(GRACE)
        except KeyboardInterrupt:
            self.interrupted = True
        closed = self._closed()  # read first: later improvements only close the gap
        (cost, starts), bound, died = self._best.known, self.bound, self._error
        if died is not None and starts is None:
            raise died
        status = "time"
        if self.interrupted:  # even if optimal: the caller must know
            status = "interrupted"
        elif closed:
            status = "optimal"
        elif died is not None:
            status = "memory" if isinstance(died, MemoryError) else "failed"
        return SolveResult(status, starts, cost, min(bound, cost), *self._size)

    def _from_coarse(self) -> None:
        """Solve the coarse problem and turn its schedules into list schedules; no bound results."""
        problem = coarser(self._draft.problem)
        if problem is not None and not self._done():
            until = perf_counter() + COARSE_SHARE * max(0.0, self._until - perf_counter())
            fine, start = self._draft.problem, in_order(problem, self._draft.known.starts)
            within = SearchHooks(self._done, lambda starts: self._offer(in_order(fine, starts)))
            progress = self._progress and (lambda _: self._report())
            solving = Solving(problem, self._form, until, start, self._seed, progress, within)
            # Rounding can make the problem infeasible; other errors recur in the fine problem.
            with suppress(Exception):
                solving.run()
            if solving.interrupted:
                raise KeyboardInterrupt
        self._coarse_over.set()

    def _search(self) -> None:
        """Search for schedules until the solver is done or the time is up."""
        round_ = 0
        self._lp_ready.wait(self._share(PATIENCE))  # LP prices are worth more than a first round
        while not self._over():
            if self._parts is not None or self._draft.known.starts is not None:
                self._round(round_)
                round_ += 1
            if self._draft.known.starts is None:
                self._ended.wait(self._share(POLL))
            self._report()

    def _round(self, number: int) -> None:
        """Run one round: list schedules for a new LP solution, then programs or local search."""
        fresh, self._fresh = self._fresh, False  # before reading _parts, which may change again
        problem, parts = self._draft.problem, self._parts
        if parts is not None and (fresh or self._draft.known.starts is None):
            seconds = self._share(LISTS)
            self._offer(from_parts(problem, parts, self._seed + number, seconds, self._over))
        begin = self._draft.known.starts
        if begin is None:
            return
        if self._paused:
            self._ended.wait(self._share(PAUSE))
            return
        began, before = perf_counter(), self._draft.known.cost
        self._improve(begin, number)
        self._turns.round_over(before, self._draft.known.cost, began, perf_counter())

    def _improve(self, begin: list[int], number: int) -> None:
        """Run a round of programs or of the local search."""
        if self._parts is not None and self._turns.programs():
            until = perf_counter() + self._share(ROUND)
            while (left := until - perf_counter()) > 0 and not (self._paused or self._over()):
                best = self._draft.known.starts or begin
                self._offer(self._polish.better(best, self._hints, left))
            return
        search = Search(self._draft.problem, begin, self._seed + number)
        try:
            search.run(self._share(ROUND), lambda: self._paused or self._over())
        finally:  # also after Ctrl-C
            self._turns.searched(in_vain=search.cost >= self._draft.known.cost)
            self._offer(search.best)

    def _share(self, seconds: float) -> float:
        return max(0.0, min(seconds, (self._until - perf_counter()) / 4))

    @property
    def _paused(self) -> bool:
        """Whether the search pauses."""
        now = perf_counter()
        return now < self._paused_until or self._turns.rests(self._draft.known.cost, now)

    def _over(self) -> bool:
        """Return whether to stop the search, also because the prover has ended."""
        return self._ended.is_set() or self._done()

    def _done(self) -> bool:
        over = self._stop.is_set() or perf_counter() >= self._until - 0.05 or self._closed()
        return over or (self._within is not None and self._within.over())

    def _closed(self) -> bool:
        """Return whether the best schedule is proven optimal within tolerances."""
        cost = self._best.known.cost
        return cost < inf and cost - self.bound <= CLOSE * max(1.0, cost)

    def _report(self) -> None:
        if self._progress is not None:
            left = max(0.0, self._until - perf_counter())
            self._progress(SolverProgress(self._best.known.cost, self.bound, self._nodes, left))

    def _offer(self, starts: Sequence[int] | None) -> None:
        """Store a schedule if it is the best so far."""
        if starts is None:
            return
        if self._best.offer(starts) and self._within is not None:
            self._within.improved(starts)
        if self._draft is not self._best:
            self._draft.offer(starts)

    def _guarded(self) -> None:
        """Run the prover in its thread; store any error for `run`."""
        try:
            self._prove()
        except Exception as error:  # noqa: BLE001  `run` raises it
            self._error = error
            if isinstance(error, NoScheduleError):
                self._stop.set()  # the coarse problem cannot help either
        finally:
            self._ended.set()
            self._lp_ready.set()

    def _prove(self) -> None:
        if self.problem.beta or not (fits(self.problem) and has_highs()):
            self._with_programs()
            return
        if self._best.known.starts is None:
            self._first_lp([FIRST] * len(self.problem.tasks))  # detects infeasibility
        self._with_tree()

    def _with_tree(self) -> None:
        """Compute prices of GPUs, then run branch, price and cut."""
        from oracle.bounds.master import columns_of  # noqa: PLC0415  where highspy is installed
        from oracle.bounds.tree import Tree  # noqa: PLC0415

        starts = starts_of(self.problem)
        prices = ascend(starts, self._done)
        self._raise_bound(prices.bound)
        self._coarse_over.wait()
        self._suggest(starts.split(prices.parts), fresh=True)
        tree = Tree(starts, columns_of(starts, prices, self._best.known.starts), self._done)
        until = perf_counter() + ROOT_SHARE * max(0.0, self._until - perf_counter())
        for bound in tree.root(self._until):
            self._learn(tree, fresh=True)
            self._raise_bound(bound)
            self._paused_until = until
        if tree.found is not None:
            self._learn(tree)  # the last round may have proven optimality
        self._paused_until = -inf
        dived, branched, failed_dives, least = 0.0, 0.0, 0, -inf
        other = Polish(self.problem, self._form, self._seed + 1)
        while not tree.done and not self._done():
            began = perf_counter()
            far = self._best.known.cost > (1.0 + DIVE) * max(tree.bound, self.bound)
            if far and tree.new and (1 + failed_dives) * dived <= branched:
                least = self._best.known.cost
                self._dive(tree)
                dived += perf_counter() - began
                continue
            known = self._best.known.starts
            if self._within is not None and dived and known is not None:
                self._offer(other.better(known, self._hints, self._share(ROUND)))
                continue
            tree.grow(self._limit(), self._until)
            self._learn(tree)
            self._raise_bound(tree.bound)
            branched += perf_counter() - began
            if least > -inf:  # since the dive, the search has tried lists from its last LP
                failed_dives, least = (
                    failed_dives + 1 if self._best.known.cost >= least else 0,
                    -inf,
                )
        if tree.done and tree.bound == inf:
            raise NoScheduleError("no schedule meets all cutoffs; allow a slowdown")
        self._raise_bound(tree.bound)

    def _dive(self, tree: Tree) -> None:
        """Run a dive, with the search paused."""
        until = perf_counter() + DIVE_SHARE * max(0.0, self._until - perf_counter())
        self._paused_until = until
        for _ in tree.dive(self._limit, until):
            self._learn(tree, fresh=True)
            self._report()
        self._paused_until = self._listed = -inf  # the end of a dive gives the best lists
        self._learn(tree, fresh=True)

    def _learn(self, tree: Tree, *, fresh: bool = False) -> None:
        """Take over the tree's LP solution and sizes; with `fresh`, build lists if it is time."""
        self._size = tree.master.size, tree.master.entries
        self._nodes = tree.nodes
        if tree.whole[0] < self._best.known.cost:
            self._offer(tree.whole[1])
        fresh = fresh and perf_counter() > self._listed + ROUND
        if fresh:
            self._listed = perf_counter()
        self._suggest(tree.parts, fresh=fresh)

    def _suggest(self, parts: Sequence[Floats], *, fresh: bool = False) -> None:
        """Give the search an LP solution (fraction of each start); `fresh` builds lists from it."""
        self._parts = [part.tolist() for part in parts]
        if fresh:
            self._fresh = True
        self._lp_ready.set()
        self._hints = [
            (np.flatnonzero(part > PART) + task.release).tolist()
            for task, part in zip(self.problem.tasks, parts, strict=True)
        ]

    def _first_lp(self, horizons: Sequence[int]) -> Fitted | None:
        """Solve the LP of a program and give its solution to the search."""
        fit = fitted(self.problem, self._form, self._until, horizons, self._raise_bound, self._done)
        if fit is not None:
            self._parts, self._hints = fit.parts, hinted(fit.model.cells, fit.parts)
            self._fresh = True
            self._lp_ready.set()
        return fit

    def _with_programs(self) -> None:
        """Solve the LP, then branch and bound; repeat with longer horizons while tails are used."""
        self._coarse_over.wait()
        horizons = [FIRST] * len(self.problem.tasks)
        while not self._done():
            horizons = [*map(max, horizons, horizons_of(self.problem, self._best.known.starts))]
            fit = self._first_lp(horizons)
            if fit is None:
                return
            horizons = fit.horizons
            program = fit.model.program
            self._size = len(program.costs), program.nonzeros
            values = self._branch(fit)
            late = [] if values is None else fit.model.in_tails(values)
            if not late:
                return
            for place in late:
                horizons[place] *= 2

    def _limit(self) -> float:
        """Return the cost that an improvement must be below."""
        cost = self._best.known.cost
        if self.problem.whole:
            return cost - 1.0 + 2 * TOLERANCE * max(1.0, cost)
        return cost * (1.0 - TOLERANCE)

    def _raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, safe(bound, whole=self.problem.whole))
        self._report()

    def _branch(self, fit: Fitted) -> list[float] | None:
        """Run the solver's branch and bound, from the best schedule if it is representable."""
        model, best = fit.model, self._best.known.starts
        start = best if best is not None and model.represents(best) else None
        found = solve(
            model.program,
            seconds=self._until - perf_counter(),
            start=None if start is None else model.encode(start),
            progress=self._on_progress,
            improved=lambda values: self._offer(model.decode(values)),
        )
        if found.status == "infeasible":
            raise NoScheduleError("no schedule meets all cutoffs; allow a slowdown")
        self._raise_bound(found.bound)
        if found.values is not None:
            self._offer(model.decode(found.values))
        return found.values if found.status == "optimal" else None

    def _on_progress(self, best: float, bound: float, nodes: int) -> bool:
        self._nodes = nodes
        self._raise_bound(bound)
        return self._done()
