"""The market of rounds as a program, and the plan of its solution (Shockwave, §6.1, appendix G).

Each job buys rounds of a window. The progress of a job depends only on the number s of its rounds,
because regimes can also change inside a round. So a table has its utility for each s, and the
logarithm needs no breakpoints. The program chooses s for each job; afterwards `placing` chooses the
rounds. For N jobs on M GPUs the program maximises

    1 / (N·M) · Σ budget · ftf^k · log max(U(s), 1e-6) - lambda · H / Z

with U = epochs done / epochs, Z the sum of all total run times, and
H = max(Σ width · R / M, max R), where R is the remaining run time of a job after the window.

A program of few jobs and rounds has a variable for each job and round, so that it allows exactly
the choices of s that fit. A larger one has a row for each width v: in a round at most ⌊M / v⌋ jobs
with at least this width can run, and a wider job counts ⌊width / v⌋ times. If each width divides
the next, these rows are exact for a single round.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, fsum, log
from typing import NamedTuple

from sia.policies.shockwave.placing import filled, placed
from sia.policies.shockwave.searching import WORK, AskedRounds, searched
from sia.program import Program, ProgramBuilder

LEAST_UTILITY = 1e-6
"""Utility of a job without progress, so that its logarithm is finite."""

EXACT = 100
"""Largest number of pairs of job and round for a program with a variable for each pair. A solver
proves the optimum of such a program in milliseconds; symmetric rounds make larger ones slow."""

LARGEST_COST = 1e3
"""The largest weight of a job in a program; the objective is scaled to it."""

MOST_WEIGHT = 1e100
"""The largest weight of a job. Without it, the weight of a short job that waited long would be
infinite with k = 100."""

EDGE = 1e-9
"""Fraction of a round below which remaining work counts as rounding."""


class MarketJob(NamedTuple):
    """A job in the market. Times are in seconds."""

    id: str
    width: int
    done: float
    """Number of epochs done."""
    epochs: float
    total: float
    """Its total run time."""
    ftf: float
    """Its estimated finish-time fairness."""
    regimes: Sequence[tuple[float, float]]
    """(Epochs left, seconds of an epoch) of each regime from now on."""
    budget: float = 1.0
    running: bool = False
    pinned: bool = False
    """Whether it runs and must not be stopped."""
    draws: Sequence[Sequence[tuple[float, float]]] = ()
    """Randomly drawn regimes from now on, for the expected welfare (appendix F)."""

    @property
    def remaining(self) -> float:
        """Seconds until its end if it runs without a pause."""
        return fsum(epochs * seconds for epochs, seconds in self.regimes)

    def epochs_after(self, seconds: float) -> float:
        """Return the number of epochs done after `seconds` more of running. O(regimes)."""
        return self._epochs(self.regimes, seconds)

    def utility(self, seconds: float) -> float:
        """Return the fraction of its epochs done after `seconds` more; the mean over draws."""
        if not self.draws:
            return self._epochs(self.regimes, seconds) / self.epochs
        draws = self.draws
        done = fsum(self._epochs(regimes, seconds) for regimes in draws)
        return done / len(draws) / self.epochs

    def _epochs(self, regimes: Sequence[tuple[float, float]], seconds: float) -> float:
        done = self.done
        for epochs, each in regimes:
            if seconds < epochs * each:
                return done + seconds / each
            done += epochs
            seconds -= epochs * each
        return done


class Market(NamedTuple):
    """The jobs of one pool, and the window. `round` is in seconds."""

    gpus: int
    round: float
    rounds: int
    k: float
    lam: float
    jobs: Sequence[MarketJob]

    def most(self, job: MarketJob) -> int:
        """Return the largest number of rounds that a job can use; 0 if it is too wide."""
        if job.width > self.gpus:
            return 0
        return min(self.rounds, ceil(job.remaining / self.round - EDGE))

    def welfare(self, job: MarketJob, rounds: int) -> float:
        """Return the term of a job in the objective if it gets this number of rounds."""
        return self.welfares(job, (rounds,))[0]

    def welfares(self, job: MarketJob, rounds: Iterable[int]) -> list[float]:
        """Return `welfare` for each of these numbers of rounds. O(rounds · regimes)."""
        weight = weight_of(job.budget, job.ftf, self.k) / (len(self.jobs) * self.gpus)
        utilities = (job.utility(number * self.round) for number in rounds)
        return [weight * log(max(utility, LEAST_UTILITY)) for utility in utilities]

    def left(self, job: MarketJob, rounds: int) -> float:
        """Return the remaining run time of a job after this number of rounds, in seconds."""
        return max(0.0, job.remaining - rounds * self.round)

    @property
    def penalty(self) -> float:
        """The cost of a second of makespan in the objective."""
        whole = fsum(job.total for job in self.jobs)
        return self.lam / whole if whole else 0.0

    def makespan(self, counts: Sequence[int]) -> float:
        """Return H, a lower bound on the makespan after the window, in seconds."""
        left = [self.left(job, s) for job, s in zip(self.jobs, counts, strict=True)]
        area = fsum(job.width * r for job, r in zip(self.jobs, left, strict=True)) / self.gpus
        return max(area, *left)

    def objective(self, counts: Sequence[int]) -> float:
        """Return the objective if each job gets its number of rounds. O(jobs · regimes)."""
        if not self.jobs:
            return 0.0
        gained = fsum(self.welfare(job, s) for job, s in zip(self.jobs, counts, strict=True))
        return gained - self.penalty * self.makespan(counts)

    def rows(self) -> list[tuple[int, int]]:
        """Return (v, rounds of jobs at least v wide), where a wider job counts more often."""
        widths = sorted({1, *(job.width for job in self.jobs if job.width <= self.gpus)})
        return [(v, self.gpus // v * self.rounds) for v in widths]

    @property
    def scale(self) -> float:
        """Factor on the objective in the program, because solvers ignore values of 1e-6."""
        weights = (weight_of(job.budget, job.ftf, self.k) for job in self.jobs)
        largest = max(weights, default=0.0) / max(1, len(self.jobs) * self.gpus)
        return LARGEST_COST / largest if largest else 1.0

    @property
    def exact(self) -> bool:
        """Whether its program has a variable for each job and round."""
        return len(self.jobs) * self.rounds <= EXACT


def weight_of(budget: float, ftf: float, k: float) -> float:
    """Return the weight of a job in the market, at most `MOST_WEIGHT`."""
    try:
        return min(MOST_WEIGHT, budget * float(ftf**k))
    except OverflowError:
        return MOST_WEIGHT


class MarketPlan(NamedTuple):
    """The rounds of the window that each job gets, in the order of the market's jobs."""

    plan: list[list[int]]
    """By job: 1 for a round in which it runs, else 0."""
    objective: float

    @property
    def counts(self) -> list[int]:
        """The number of rounds for each job."""
        return [sum(row) for row in self.plan]


def program(markets: Sequence[Market]) -> Program:
    """Return one program for several markets, which do not depend on each other.

    Its cost is minus the sum of their objectives, each times the market's `scale`.
    O(jobs · rounds).
    """
    builder = ProgramBuilder()
    for market in markets:
        _add(builder, market)
    return builder.build()


def _add(builder: ProgramBuilder, market: Market) -> None:
    """Add the columns of a market: those of s for each job, then H, then those of rounds."""
    first: list[int] = []
    scale = market.scale
    most = [market.most(job) for job in market.jobs]
    for job, count in zip(market.jobs, most, strict=True):
        costs = [-scale * welfare for welfare in market.welfares(job, range(count + 1))]
        if job.pinned:  # it gets all
            builder.offset += costs[-1]
            costs = [0.0]
        column = builder.binaries(costs)
        builder.exactly(range(column, column + len(costs)), 1.0)
        first.append(column)
    if market.penalty:
        _add_makespan(builder, market, first, most)
    for v, whole in market.rows():
        high = whole
        terms: dict[int, float] = {}
        for job, column, count in zip(market.jobs, first, most, strict=True):
            times = job.width // v
            if not times:
                continue
            if job.pinned:
                high -= times * count
            else:
                terms |= {column + s: float(times * s) for s in range(1, count + 1)}
        builder.at_most(terms, float(max(0, high)))
    if market.exact:
        _add_rounds(builder, market, first, most)


def _add_makespan(
    builder: ProgramBuilder, market: Market, first: Sequence[int], most: Sequence[int]
) -> None:
    """Add H with its lower bounds: the remaining area, and the rest of each job."""
    gpus = market.gpus
    whole = fsum(job.width * job.remaining for job in market.jobs) / gpus
    least = max(
        0.0,
        whole - market.rounds * market.round,
        *(market.left(job, s) for job, s in zip(market.jobs, most, strict=True)),
    )
    makespan = builder.column(market.scale * market.penalty, least)
    area = {makespan: 1.0}
    constant = 0.0
    for job, column, count in zip(market.jobs, first, most, strict=True):
        left = [market.left(job, s) for s in range(count + 1)]
        if job.pinned:
            constant += job.width * left[-1] / gpus
            continue
        area |= {column + s: -job.width * r / gpus for s, r in enumerate(left) if r}
        if left[0] > least:
            own = {column + s: -r for s, r in enumerate(left) if r}
            builder.row({makespan: 1.0, **own}, low=0.0)
    builder.row(area, low=constant)


def _add_rounds(
    builder: ProgramBuilder, market: Market, first: Sequence[int], most: Sequence[int]
) -> None:
    """Add a variable for each job and round, so that only feasible counts can be chosen."""
    rounds = range(market.rounds)
    cells = [builder.binaries([0.0] * market.rounds) for _ in market.jobs]
    for job, column, count, cell in zip(market.jobs, first, most, cells, strict=True):
        terms = {cell + t: 1.0 for t in rounds}
        if job.pinned:
            for t in rounds:
                builder.exactly([cell + t], float(t < count))
        else:
            terms |= {column + s: -float(s) for s in range(1, count + 1)}
            builder.row(terms, 0.0, 0.0)
    for t in rounds:
        terms = {cell + t: float(job.width) for job, cell in zip(market.jobs, cells, strict=True)}
        builder.at_most(terms, float(market.gpus))


def counts_of(markets: Sequence[Market], values: Sequence[float]) -> list[list[int]]:
    """Return the rounds of each job of each market in a solution of their program."""
    found, at = [], 0
    for market in markets:
        counts = []
        for job in market.jobs:
            columns = 1 if job.pinned else market.most(job) + 1
            chosen = values[at : at + columns]
            counts.append(market.most(job) if job.pinned else chosen.index(max(chosen)))
            at += columns
        at += 1 if market.penalty else 0
        at += len(market.jobs) * market.rounds if market.exact else 0
        found.append(counts)
    return found


def greedy(market: Market) -> list[int]:
    """Return the number of rounds of each job if each GPU-round goes to the job that gains most.

    Solvers start from this plan; without a solver it is carried out. O(jobs · rounds²).
    """
    most = [market.most(job) for job in market.jobs]
    gains = [
        market.welfares(job, range(high + 1)) for job, high in zip(market.jobs, most, strict=True)
    ]
    counts = [most[j] if job.pinned else 0 for j, job in enumerate(market.jobs)]
    room = {
        v: high - sum(job.width // v * s for job, s in zip(market.jobs, counts, strict=True))
        for v, high in market.rows()
    }

    spared = market.penalty * market.round

    def gain(j: int) -> float:
        """Return the best gain per GPU-round of further rounds, negated for the heap."""
        now, *later = gains[j][counts[j] :]
        most_gained = max((gained - now) / more for more, gained in enumerate(later, 1))
        width = market.jobs[j].width
        return -(most_gained + spared * width / market.gpus) / width

    heap = [(gain(j), j) for j, s in enumerate(counts) if s < most[j]]
    heapify(heap)
    while heap:
        _, j = heappop(heap)
        width = market.jobs[j].width
        if any(width // v > left for v, left in room.items()):
            continue
        counts[j] += 1
        for v in room:
            room[v] -= width // v
        if counts[j] < most[j]:
            heappush(heap, (gain(j), j))
    return counts


def planned(market: Market, counts: Sequence[int]) -> MarketPlan:
    """Return a plan in which each job gets its number of rounds, or as many as fit.

    GPUs that would be idle go to jobs that can use them, as additional rounds.
    """
    asked = _asked(market, counts)
    plan = filled(asked, placed(asked, market.gpus, market.rounds), market.gpus)
    return MarketPlan(plan, market.objective([sum(row) for row in plan]))


def _asked(market: Market, counts: Sequence[int]) -> list[AskedRounds]:
    return [
        AskedRounds(
            job.width, count, market.most(job), (job.ftf, job.budget), job.running, job.pinned
        )
        for job, count in zip(market.jobs, counts, strict=True)
    ]


def best_plan(market: Market, counts: Sequence[int] | None, work: int = WORK) -> MarketPlan:
    """Return the plan of a solution, or the greedy plan if there is no solution.

    If the rounds of the solution do not fit together, return the better of both plans. If all plans
    of the window can be enumerated with `work` choices, return the best of all, with the fewest
    starts, then with the most urgent jobs earliest.
    """
    tried = None
    if market.exact:
        most = [*map(market.most, market.jobs)]
        objective = market.objective
        tried = searched(_asked(market, most), market.gpus, market.rounds, objective, work)
    if tried is not None:
        return MarketPlan(tried, market.objective([sum(row) for row in tried]))
    plans = []
    if counts is not None:
        plans.append(planned(market, _settled(market, counts)))
        if plans[0].objective >= market.objective(counts):
            return plans[0]  # a solver begins with the greedy plan, so the other is not better
    plans.append(planned(market, _settled(market, greedy(market))))
    return max(plans, key=lambda plan: plan.objective)


def _settled(market: Market, counts: Sequence[int]) -> list[int]:
    """Return equally good counts in which running jobs get more rounds than equal pending ones.

    The objective does not depend on which of several equal jobs gets more rounds. Running jobs save
    starts; after them come the more urgent jobs. O(jobs · log jobs).
    """
    alike: dict[tuple[Hashable, ...], list[int]] = {}
    for j, job in enumerate(market.jobs):
        weight = weight_of(job.budget, job.ftf, market.k)
        ahead = tuple(tuple(map(tuple, path)) for path in (job.regimes, *job.draws))
        key = job.width, job.done, job.epochs, weight, ahead, job.pinned
        alike.setdefault(key, []).append(j)
    found = [*counts]
    for group in alike.values():
        order = sorted(group, key=lambda j: (not market.jobs[j].running, -market.jobs[j].ftf, j))
        most = sorted((counts[j] for j in group), reverse=True)
        for j, count in zip(order, most, strict=True):
            found[j] = count
    return found


def cheapest(market: Market, job_id: str, counts: Mapping[str, int]) -> tuple[str, float]:
    """Return the job that would lose the least if it gave a round to this one, and its loss.

    `counts` has the number of rounds of each job. The loss is relative to the gain of this job. The
    id is empty if there is no such job. O(jobs).
    """
    mine = next(job for job in market.jobs if job.id == job_id)

    def worth(job: MarketJob, more: int) -> float:
        has = counts.get(job.id, 0)
        return abs(market.welfare(job, has + more) - market.welfare(job, has))

    others = [
        (worth(job, -1), job.id)
        for job in market.jobs
        if job.id != job_id and counts.get(job.id) and job.width >= mine.width and not job.pinned
    ]
    gain = worth(mine, 1)
    if not others or not gain:
        return "", 0.0
    loss, other = min(others)
    return other, loss / gain


def start_of(markets: Sequence[Market]) -> tuple[float, ...]:
    """Return a feasible solution of the program, for a solver to begin from."""
    values: list[float] = []
    for market in markets:
        plan = planned(market, greedy(market))
        counts = plan.counts
        for job, s in zip(market.jobs, counts, strict=True):
            if job.pinned:
                values.append(1.0)
            else:
                values += [float(s == at) for at in range(market.most(job) + 1)]
        if market.penalty:
            values.append(market.makespan(counts))
        if market.exact:
            values += [float(cell) for row in plan.plan for cell in row]
    return tuple(values)
