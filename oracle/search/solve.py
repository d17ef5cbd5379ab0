"""The best schedule that can be found in the time there is, and what none can beat.

Two work at once: a thread in which the solver proves bounds, and the search for schedules beside
it, which takes up what the LP says of the order as soon as it is known.
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
from oracle.solver.program import TOLERANCE
from oracle.solver.solvers import has_highs, solve

if TYPE_CHECKING:
    from oracle.bounds.tree import Tree

CLOSE = 2.5 * TOLERANCE
"""What may lie between cost and bound of an optimum, in proportion: a bound is proven less one
tolerance, and the solver's own cost may be off by another."""

SLICE = 2.0
"""Seconds between two looks at what the solver has found, where there is nothing else to do."""

LISTS, ROUND = 3.0, 10.0
"""Seconds for lists by the LP, of which the best comes early; of a round of search or programs."""

COARSE_SHARE = 0.5
"""The part of the time in which the jobs are scheduled in coarser slots, where there are many: a
dive and programs after it take 300 s, and after 250 of the others the bound hardly rises on."""

PATIENCE = 5.0
"""Seconds that the search waits for a first word of the prover."""

DIVE, DIVE_SHARE = 0.02, 0.5
"""Where the best costs so much more than the bound, in proportion, dives take turns with branches:
near the end, what is left is mostly to be proven; after dives in vain branches have the more of
the time. And the part of the time left that one may take: most comes of its later steps."""

ROOT_SHARE, PAUSE = 0.1, 0.2
"""The part of the time for which the search leaves the machine to the root's cuts; it does so while
the LP dives, too: beside it the LP is half as fast, and most comes of a dive's end. Lists are made
meanwhile, now and then. And the seconds between two looks whether it is over."""

SWITCH = 2e-4
"""Seconds after which the search lets the prover have the interpreter: that asks for it between two
steps of numpy, each of which takes about as long, and would wait for 5 ms each time."""

GRACE = 5.0
"""Seconds in which the solver has to stop: a tree's LP does not listen, and is left alone."""


class SearchHooks(NamedTuple):
    """Whom better schedules are for, and whether that is over: nothing else counts then."""

    over: Callable[[], bool]
    took: Callable[[Sequence[int]], object]


class Solving:
    """One problem while it is solved."""

    def __init__(
        self,
        problem: Problem,
        form: Form,
        until: float,
        start: Sequence[int] | None = None,
        seed: int = 0,
        tell: ProgressCallback | None = None,
        within: SearchHooks | None = None,
    ) -> None:
        """Solve `problem` until the clock reads `until` (seconds), from `start` if there is one."""
        self.problem, self.bound, self._within = problem, 0.0, within
        self._best = Incumbent(problem)
        # the search looks at no fairness: where that counts, it has a best of its own
        self._draft = Incumbent(replace(problem, beta=0.0)) if problem.beta else self._best
        if start is not None:
            self._offer(start)
        self._form, self._until, self._seed, self._tell = form, until, seed, tell
        self._stop, self._told, self._coarse_over = Event(), Event(), Event()
        self._ended = Event()  # in 3.11 a join that Ctrl-C ends takes the thread for ended as well
        self._parts: Sequence[Sequence[float]] | None = None
        self._hints: list[list[int]] = []
        self._fresh, self._turns = False, SchedulingRounds()
        self._listed = self._alone_until = -inf
        self._polish = Polish(self._draft.problem, form, seed)
        self._size, self._nodes = (0, 0), 0
        self._died: Exception | None = None
        self.interrupted = False  # by Ctrl-C

    def run(self) -> SolveResult:
        """Solve it. Ctrl-C ends it with what is known by then, and so does a solver that dies.

        Raises NoScheduleError where there is no schedule, and without one what the solver died of.
        """
        before = getswitchinterval()
        try:
            Thread(target=self._guarded, daemon=True).start()
            self._from_coarse()
            setswitchinterval(SWITCH)
            self._search()
        except KeyboardInterrupt:
            self.interrupted = True
        except Exception as error:  # noqa: BLE001  what is known by then is kept
            self._died = error
        finally:
            setswitchinterval(before)
        self._stop.set()
        self._coarse_over.set()
        try:
            self._ended.wait(GRACE)
        except KeyboardInterrupt:
            self.interrupted = True
        closed = self._closed()  # first: what comes later only closes it more
        (cost, starts), bound, died = self._best.known, self.bound, self._died
        if died is not None and starts is None:
            raise died
        status = "time"
        if self.interrupted:  # even where it is proven: whoever asked for this is to hear of Ctrl-C
            status = "interrupted"
        elif closed:
            status = "optimal"
        elif died is not None:
            status = "memory" if isinstance(died, MemoryError) else "failed"
        return SolveResult(status, starts, cost, min(bound, cost), *self._size)

    def _from_coarse(self) -> None:
        """Begin with lists of all that is found in coarser slots; it proves nothing."""
        problem = coarser(self._draft.problem)
        if problem is not None and not self._done():
            until = perf_counter() + COARSE_SHARE * max(0.0, self._until - perf_counter())
            fine, start = self._draft.problem, in_order(problem, self._draft.known.starts)
            within = SearchHooks(self._done, lambda starts: self._offer(in_order(fine, starts)))
            tell = self._tell and (lambda _: self._say())
            solving = Solving(problem, self._form, until, start, self._seed, tell, within)
            # rounding may leave no schedule, and what else goes wrong goes wrong in all slots
            with suppress(Exception):
                solving.run()
            if solving.interrupted:
                raise KeyboardInterrupt
        self._coarse_over.set()

    def _search(self) -> None:
        """Look for schedules until the solver is done or the time is up."""
        round_ = 0
        self._told.wait(self._share(PATIENCE))  # prices say more than a first round finds
        while not self._over():
            if self._parts is not None or self._draft.known.starts is not None:
                self._look(round_)
                round_ += 1
            if self._draft.known.starts is None:
                self._ended.wait(self._share(SLICE))
            self._say()

    def _look(self, number: int) -> None:
        """One round: lists where the LP says something new, then programs or the local search."""
        fresh, self._fresh = self._fresh, False  # before what they say: more may come meanwhile
        problem, parts = self._draft.problem, self._parts
        if parts is not None and (fresh or self._draft.known.starts is None):
            seconds = self._share(LISTS)
            self._offer(from_parts(problem, parts, self._seed + number, seconds, self._over))
        begin = self._draft.known.starts
        if begin is None:
            return
        if self._waits:
            self._ended.wait(self._share(PAUSE))
            return
        began, before = perf_counter(), self._draft.known.cost
        self._improve(begin, number)
        self._turns.round_over(before, self._draft.known.cost, began, perf_counter())

    def _improve(self, begin: list[int], number: int) -> None:
        """A round of programs or of the local search."""
        if self._parts is not None and self._turns.programs():
            until = perf_counter() + self._share(ROUND)
            while (left := until - perf_counter()) > 0 and not (self._waits or self._over()):
                best = self._draft.known.starts or begin
                self._offer(self._polish.better(best, self._hints, left))
            return
        search = Search(self._draft.problem, begin, self._seed + number)
        try:
            search.run(self._share(ROUND), lambda: self._waits or self._over())
        finally:  # Ctrl-C too
            self._turns.searched(in_vain=search.cost >= self._draft.known.cost)
            self._offer(search.best)

    def _share(self, seconds: float) -> float:
        return max(0.0, min(seconds, (self._until - perf_counter()) / 4))

    @property
    def _waits(self) -> bool:
        """Whether the search leaves the machine to the prover, or rests."""
        now = perf_counter()
        return now < self._alone_until or self._turns.rests(self._draft.known.cost, now)

    def _over(self) -> bool:
        """Whether schedules are of no use any more: nor are they where the prover has ended."""
        return self._ended.is_set() or self._done()

    def _done(self) -> bool:
        over = self._stop.is_set() or perf_counter() >= self._until - 0.05 or self._closed()
        return over or (self._within is not None and self._within.over())

    def _closed(self) -> bool:
        """Whether the best schedule is proven to be so, as far as solvers can tell."""
        cost = self._best.known.cost
        return cost < inf and cost - self.bound <= CLOSE * max(1.0, cost)

    def _say(self) -> None:
        if self._tell is not None:
            left = max(0.0, self._until - perf_counter())
            self._tell(SolverProgress(self._best.known.cost, self.bound, self._nodes, left))

    def _offer(self, starts: Sequence[int] | None) -> None:
        """Take a schedule if it is the best so far."""
        if starts is None:
            return
        if self._best.offer(starts) and self._within is not None:
            self._within.took(starts)
        if self._draft is not self._best:
            self._draft.offer(starts)

    def _guarded(self) -> None:
        """In the thread: whatever goes wrong is kept for `run`."""
        try:
            self._prove()
        except Exception as error:  # noqa: BLE001  it is raised again where it can be heard
            self._died = error
            if isinstance(error, NoScheduleError):
                self._stop.set()  # nor is there one for coarser slots to find
        finally:
            self._ended.set()
            self._told.set()

    def _prove(self) -> None:
        if self.problem.beta or not (fits(self.problem) and has_highs()):
            self._with_programs()
            return
        if self._best.known.starts is None:
            self._first_lp([FIRST] * len(self.problem.tasks))  # it says if there is no schedule
        self._with_tree()

    def _with_tree(self) -> None:
        """Prices of GPUs, then branch, price and cut."""
        from oracle.bounds.master import columns_of  # noqa: PLC0415  where highspy is installed
        from oracle.bounds.tree import Tree  # noqa: PLC0415

        starts = starts_of(self.problem)
        prices = ascend(starts, self._done)
        self._rose(prices.bound)
        self._coarse_over.wait()
        self._suggest(starts.split(prices.parts), fresh=True)
        tree = Tree(starts, columns_of(starts, prices, self._best.known.starts), self._done)
        until = perf_counter() + ROOT_SHARE * max(0.0, self._until - perf_counter())
        for bound in tree.root(self._until):
            self._learn(tree, fresh=True)
            self._rose(bound)
            self._alone_until = until
        if tree.found is not None:
            self._learn(tree)  # the last of them may have settled it
        self._alone_until = -inf
        dived, branched, vain, least = 0.0, 0.0, 0, -inf
        other = Polish(self.problem, self._form, self._seed + 1)
        while not tree.done and not self._done():
            begun = perf_counter()
            far = self._best.known.cost > (1.0 + DIVE) * max(tree.bound, self.bound)
            if far and tree.new and (1 + vain) * dived <= branched:
                least = self._best.known.cost
                self._dive(tree)
                dived += perf_counter() - begun
                continue
            known = self._best.known.starts
            if self._within is not None and dived and known is not None:
                self._offer(other.better(known, self._hints, self._share(ROUND)))
                continue
            tree.grow(self._limit(), self._until)
            self._learn(tree)
            self._rose(tree.bound)
            branched += perf_counter() - begun
            if least > -inf:  # meanwhile there was a list of where the dive ended
                vain, least = vain + 1 if self._best.known.cost >= least else 0, -inf
        if tree.done and tree.bound == inf:
            raise NoScheduleError("no schedule keeps all cutoffs; allow some slowdown")
        self._rose(tree.bound)

    def _dive(self, tree: Tree) -> None:
        """Have the search follow the LP down."""
        until = perf_counter() + DIVE_SHARE * max(0.0, self._until - perf_counter())
        self._alone_until = until
        for _ in tree.dive(self._limit, until):
            self._learn(tree, fresh=True)
            self._say()
        self._alone_until = self._listed = -inf  # lists are worth most where it ends
        self._learn(tree, fresh=True)

    def _learn(self, tree: Tree, *, fresh: bool = False) -> None:
        """Take over what the LP says, and how large it is; `fresh` is worth lists now and then."""
        self._size = tree.master.size, tree.master.entries
        self._nodes = tree.nodes
        if tree.whole[0] < self._best.known.cost:
            self._offer(tree.whole[1])
        fresh = fresh and perf_counter() > self._listed + ROUND
        if fresh:
            self._listed = perf_counter()
        self._suggest(tree.parts, fresh=fresh)

    def _suggest(self, parts: Sequence[Floats], *, fresh: bool = False) -> None:
        """Tell the search which part of each task the LP starts when; `fresh` are worth lists."""
        self._parts = [part.tolist() for part in parts]
        if fresh:
            self._fresh = True
        self._told.set()
        self._hints = [
            (np.flatnonzero(part > PART) + task.release).tolist()
            for task, part in zip(self.problem.tasks, parts, strict=True)
        ]

    def _first_lp(self, horizons: Sequence[int]) -> Fitted | None:
        """The LP of a program; the search learns what it says."""
        fit = fitted(self.problem, self._form, self._until, horizons, self._rose, self._done)
        if fit is not None:
            self._parts, self._hints = fit.parts, hinted(fit.model.cells, fit.parts)
            self._fresh = True
            self._told.set()
        return fit

    def _with_programs(self) -> None:
        """The LP, then branch and bound, with longer horizons where its best uses a tail."""
        self._coarse_over.wait()
        horizons = [FIRST] * len(self.problem.tasks)
        while not self._done():
            horizons = [*map(max, horizons, horizons_of(self.problem, self._best.known.starts))]
            fit = self._first_lp(horizons)
            if fit is None:
                return
            horizons = fit.horizons
            milp = fit.model.milp
            self._size = len(milp.costs), milp.nonzeros
            values = self._branch(fit)
            late = [] if values is None else fit.model.in_tails(values)
            if not late:
                return
            for place in late:
                horizons[place] *= 2

    def _limit(self) -> float:
        """What schedules cost at least that are no better than the best."""
        cost = self._best.known.cost
        if self.problem.whole:
            return cost - 1.0 + 2 * TOLERANCE * max(1.0, cost)
        return cost * (1.0 - TOLERANCE)

    def _rose(self, bound: float) -> None:
        self.bound = max(self.bound, safe(bound, whole=self.problem.whole))
        self._say()

    def _branch(self, fit: Fitted) -> list[float] | None:
        """The solver's own branch and bound from the best schedule, if the cells can say it."""
        model, best = fit.model, self._best.known.starts
        start = best if best is not None and model.says(best) else None
        found = solve(
            model.milp,
            seconds=self._until - perf_counter(),
            start=None if start is None else model.encode(start),
            tell=self._hear,
            took=lambda values: self._offer(model.decode(values)),
        )
        if found.status == "infeasible":
            raise NoScheduleError("no schedule keeps all cutoffs; allow some slowdown")
        self._rose(found.bound)
        if found.values is not None:
            self._offer(model.decode(found.values))
        return found.values if found.status == "optimal" else None

    def _hear(self, best: float, bound: float, nodes: int) -> bool:
        self._nodes = nodes
        self._rose(bound)
        return self._done()
