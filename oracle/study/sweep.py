"""Efficiency against fairness: solve the oracle with several prices of unfairness (β)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import fsum
from time import perf_counter
from typing import Any, NamedTuple

from oracle.bounds.size import refuse_too_large
from oracle.problem.forms import FORMS
from oracle.problem.problem import Problem
from oracle.run.planned import carried_out
from oracle.run.run import ORDER, START, Instance, measured, waiting
from oracle.search.answer import ProgressCallback, SolveResult, gap_of
from oracle.search.solve import Solving
from replay.run.run import Settings, replay_one
from replay.run.schedule import Schedule

FORM = "step"

StartLists = list[list[int]]
"""Starts in slots, by problem."""


class SweepPoint(NamedTuple):
    """The oracle's result at one price; costs are in slots of waiting.

    `unfairness` is the sum over slots of the largest utilisation of a quota by its pool's jobs.
    """

    beta: float
    status: str
    cost: float
    bound: float
    unfairness: float
    schedule: Schedule

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 if proven optimal within solver tolerances."""
        return 0.0 if self.status == "optimal" else gap_of(self.cost, self.bound)


def sweep(
    instance: Instance,
    betas: Sequence[float],
    seconds: float,
    begin: Callable[[float], ProgressCallback],
) -> list[SweepPoint]:
    """Solve the instance for each of `betas`, with a time limit of `seconds` each.

    `begin` is called with the next beta and returns its progress callback. Ctrl-C ends the sweep;
    the point that was being solved has the status `interrupted`.

    Each schedule is evaluated at all prices. So even without proven optima, a higher price never
    gives more unfairness or less waiting. Raises UserError if the program is too large.
    """
    refuse_too_large(_priced(instance, max(betas)), FORM)
    known = replay_one(instance.trace, instance.table, START, Settings([START]), instance.baseline)
    found: list[StartLists] = [instance.slots(known)]
    proofs: list[tuple[float, str, float]] = []
    for beta in betas:
        answers = _solve(instance, beta, found, seconds, begin(beta))
        found.append(_starts(answers))
        statuses = {answer.status for answer in answers}
        status = next((status for status in ORDER if status in statuses), "optimal")
        proofs.append((beta, status, fsum(answer.bound for answer in answers)))
        if status == "interrupted":
            break
    return [_point(instance, found, *proof) for proof in proofs]


def _priced(instance: Instance, beta: float) -> list[tuple[float, Problem]]:
    return [(origin, replace(problem, beta=beta)) for origin, problem in instance.problems]


def _solve(
    instance: Instance,
    beta: float,
    found: Sequence[StartLists],
    seconds: float,
    progress: ProgressCallback,
) -> list[SolveResult]:
    """Solve each problem, beginning with the best known schedule."""
    answers: list[SolveResult] = []
    until = perf_counter() + seconds
    priced = _priced(instance, beta)
    for i, (_, problem) in enumerate(priced):
        now = perf_counter()
        mine = now + (until - now) / (len(priced) - i)
        if any(answer.status == "interrupted" for answer in answers):
            mine = now
        best = _best(problem, [starts[i] for starts in found])
        answers.append(Solving(problem, FORMS[FORM], mine, best, progress=progress).run())
    return answers


def _starts(answers: Sequence[SolveResult]) -> StartLists:
    found = [answer.starts for answer in answers if answer.starts is not None]
    assert len(found) == len(answers), "each solve begins with a schedule"
    return found


def _best(problem: Problem, known: Sequence[list[int]]) -> list[int]:
    """Return the schedule with the lowest cost, and of several the fairest."""
    return min(known, key=lambda starts: (problem.cost(starts), problem.unfairness(starts)))


def _point(
    instance: Instance, found: Sequence[StartLists], beta: float, status: str, bound: float
) -> SweepPoint:
    priced = [problem for _, problem in _priced(instance, beta)]
    best = [_best(problem, [starts[i] for starts in found]) for i, problem in enumerate(priced)]
    pairs = [*zip(priced, best, strict=True)]
    return SweepPoint(
        beta,
        status,
        fsum(problem.cost(starts) for problem, starts in pairs),
        bound,
        fsum(problem.unfairness(starts) for problem, starts in pairs),
        carried_out("oracle", instance.trace, instance.table, instance.starts(best)),
    )


def described(instance: Instance, point: SweepPoint) -> dict[str, Any]:
    """Return a point as plain values, for `sweep.json`."""
    found = measured(instance.trace, instance.baseline, point.schedule)
    return {
        "beta": point.beta,
        "status": point.status,
        "gap_pct": 100 * point.gap,
        "wait_s": waiting(instance.trace, point.schedule),
        "unfairness_slots": point.unfairness,
        "speedup_mean": found.speedup_mean,
        "speedup_geomean": found.speedup_geomean,
        "pools": _pools(instance, point.schedule),
    }


def _pools(instance: Instance, schedule: Schedule) -> dict[str, dict[str, Any]]:
    """Return, by pool, the jobs that start before their baseline start, and the waiting avoided."""
    pools: dict[str, dict[str, Any]] = {
        pool.name: {"jobs": 0, "sooner": 0, "alone_s": 0.0, "wait_s": 0.0}
        for pool in instance.table.pools
    }
    starts = zip(schedule.starts, instance.baseline.starts, strict=True)
    for (job, _), (start, alone) in zip(instance.trace.arrivals, starts, strict=True):
        assert start is not None, "a job never starts"
        assert alone is not None, "a job never starts in the baseline"
        pool = pools[job.pool]
        pool["jobs"] += 1
        pool["sooner"] += start < alone
        pool["alone_s"] += alone - job.submit
        pool["wait_s"] += start - job.submit
    for pool in pools.values():
        pool["sooner_pct"] = 100 * pool["sooner"] / pool["jobs"] if pool["jobs"] else None
        gone = pool["alone_s"] - pool["wait_s"]
        pool["gone_pct"] = 100 * gone / pool["alone_s"] if pool["alone_s"] else None
    return pools
