"""`sia market`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, field

from replay.fairness.equilibrium import equilibrium as find_equilibrium
from replay.fairness.equilibrium import leontief
from replay.fairness.measures import PresentJobs
from replay.logs.json_file import read_json
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.contract.solvers import solve as solve_program
from sia.limits import MAX_QUOTA, MAX_TIME
from sia.policies.shockwave.estimates import contention, fairness_estimate, makespan_bound
from sia.policies.shockwave.market import (
    Market,
    MarketJob,
    best_plan,
    counts_of,
    program,
    start_of,
)
from sia.policies.shockwave.policy import MOST_ROUNDS, SOLVE_GAP, SOLVE_LIMIT
from sia.wording import decimal, duration

JobId = str | int

TRIES = 500_000
"""Maximum number of schedules that an exhaustive search of a small window tries: two seconds."""

LEAST, LARGEST = 1e-9, MAX_TIME
"""Bounds of the positive numbers in a market, so that their products are finite."""

LEAST_SIZE = 1e-9
"""Smallest objective by which a gap is divided; a smaller objective is a rounding error."""


class _Buyer(Struct, forbid_unknown_fields=True):
    """A job in the market; see `sia.policies.shockwave.market.MarketJob`."""

    id: JobId
    width: int
    epochs: float
    regimes: list[tuple[float, float]]
    total: float
    done: float = 0.0
    ftf: float = 1.0
    budget: float = 1.0
    running: bool = False


class _Window(Struct, forbid_unknown_fields=True):
    """A market; see `sia.policies.shockwave.market.Market`."""

    gpus: int
    jobs: list[_Buyer]
    round: float = 120.0
    rounds: int = 20
    k: float = 5.0
    lam: float = field(name="lambda", default=1.0)


class _Present(Struct, forbid_unknown_fields=True):
    """A job that is in the cluster, or that ended at `end`."""

    id: JobId
    width: int
    submit: float
    attained: float
    remaining: float
    end: float | None = None


class _Cluster(Struct, forbid_unknown_fields=True):
    """A cluster and its jobs at one time."""

    gpus: int
    now: float
    jobs: list[_Present]


class _Sale(Struct, forbid_unknown_fields=True):
    """A divisible market, with either linear utilities or Leontief needs."""

    budgets: list[float]
    utilities: list[list[float]] | None = None
    needs: list[list[list[float]]] | None = None


@click.group(cls=Group)
def market() -> None:
    """Solve markets of rounds, in which jobs that are treated worst buy first."""


@market.command()
@click.argument("file", type=Path)
@json_option("Print the whole plan as JSON.")
def solve(file: Path, as_json: bool) -> None:
    """Plan the rounds of a window for the jobs in FILE.

    FILE is JSON: {gpus, round, rounds, k, lambda, jobs: [{id, width, done, epochs, total, ftf,
    budget, running, regimes: [[epochs left, seconds of an epoch], …]}]}.
    """
    window = read_json(file, _Window)
    try:
        buyers = _market(window)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    found = _solved(buyers, [job.id for job in window.jobs])
    if as_json:
        print_json(found)
        return
    click.echo(
        f"objective {found['objective']:.6g}, bound {found['bound']:.6g}, gap {found['gap']:.1e}"
    )
    rows = [
        [job_id, "".join("#" if cell else "." for cell in row), decimal(found["epochs"][job_id], 1)]
        for job_id, row in found["plan"].items()
    ]
    show_table("Plan", ["job", "rounds", "epochs"], rows, ["rounds"])


def _market(window: _Window) -> Market:
    """Check a market. Raises ValueError with the problem and the fix."""
    gpus = f"gpus is {window.gpus}; write a whole number from 1 to {MAX_QUOTA}"
    _require(1 <= window.gpus <= MAX_QUOTA, gpus)
    seconds = f"round is {window.round:g}; write seconds above 0, at most {LARGEST:g}"
    _require(LEAST <= window.round <= LARGEST, seconds)
    most = f"write a whole number from 1 to {MOST_ROUNDS}"
    _require(1 <= window.rounds <= MOST_ROUNDS, f"rounds is {window.rounds}; {most}")
    _require(0 <= window.k <= 100, f"k is {window.k:g}; write a number from 0 to 100")
    lam = f"lambda is {window.lam:g}; write a number from 0 to {LARGEST:g}"
    _require(0 <= window.lam <= LARGEST, lam)
    _unique([job.id for job in window.jobs])
    jobs = [_buyer(job, window.gpus) for job in window.jobs]
    return Market(window.gpus, window.round, window.rounds, window.k, window.lam, jobs)


def _buyer(job: _Buyer, gpus: int) -> MarketJob:
    name = f"job {job.id}"
    _require(1 <= job.width <= gpus, f"{name}: width {job.width} on {gpus} GPUs; make it fit")
    above = {"epochs": job.epochs, "total": job.total, "budget": job.budget}
    for key, value in above.items():
        mend = f"write a number above 0, at most {LARGEST:g}"
        _require(LEAST <= value <= LARGEST, f"{name}: {key} is {value:g}; {mend}")
    for key, value in {"done": job.done, "ftf": job.ftf}.items():
        mend = f"write a number from 0 to {LARGEST:g}"
        _require(0 <= value <= LARGEST, f"{name}: {key} is {value:g}; {mend}")
    past = f"{name}: {job.done:g} of {job.epochs:g} epochs are done; correct done or epochs"
    _require(job.done <= job.epochs, past)
    for epochs, seconds in job.regimes:
        fits = 0 <= epochs <= LARGEST and LEAST <= seconds <= LARGEST
        mend = f"write epochs and seconds above 0, at most {LARGEST:g}"
        _require(fits, f"{name}: regime [{epochs:g}, {seconds:g}]; {mend}")
    return MarketJob(
        str(job.id), job.width, job.done, job.epochs, job.total, job.ftf,
        job.regimes, job.budget, job.running,
    )  # fmt: skip


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _unique(ids: Sequence[JobId]) -> None:
    seen = set()
    for job_id in map(str, ids):
        _require(job_id not in seen, f"job {job_id} is listed twice; give each job its own id")
        seen.add(job_id)


def _solved(buyers: Market, ids: Sequence[JobId]) -> dict[str, Any]:
    if not buyers.jobs:
        return {"objective": 0.0, "bound": 0.0, "gap": 0.0, "plan": {}, "epochs": {}}
    solved = solve_program(
        program([buyers]),
        start=start_of([buyers]),
        gap=0.0 if buyers.exact else SOLVE_GAP,
        nodes=SOLVE_LIMIT.nodes,
        iterations=SOLVE_LIMIT.iterations,
        heuristics=True,
    )
    counts = None if solved.values is None else counts_of([buyers], solved.values)[0]
    plan = best_plan(buyers, counts, TRIES)
    limit = -solved.bound / buyers.scale
    bound = max(plan.objective, limit) if isfinite(limit) else None
    size = max(abs(plan.objective), LEAST_SIZE)
    rows = dict(zip(map(str, ids), plan.plan, strict=True))
    lasts = zip(buyers.jobs, plan.counts, strict=True)
    return {
        "objective": plan.objective,
        "bound": bound,
        "gap": None if bound is None else (bound - plan.objective) / size,
        "plan": rows,
        "epochs": {job.id: job.epochs_after(s * buyers.round) for job, s in lasts},
    }


@market.command()
@click.argument("file", type=Path)
@json_option("Print all numbers as JSON.")
def estimate(file: Path, as_json: bool) -> None:
    """Estimate how fairly the jobs in FILE are treated, and when all could be over.

    FILE is JSON: {gpus, now, jobs: [{id, width, submit, attained, remaining, end}]}, with `end`
    only for jobs that are over.
    """
    cluster = read_json(file, _Cluster)
    try:
        found = _estimated(cluster)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    if as_json:
        print_json(found)
        return
    click.echo(f"no schedule ends in less than {duration(found['bound'])}")
    rows = [
        [job_id, decimal(job["contention"]), decimal(job["ftf"])]
        for job_id, job in found["jobs"].items()
    ]
    show_table("Jobs", ["job", "contention", "ftf"], rows)


def _estimated(cluster: _Cluster) -> dict[str, Any]:
    gpus, now = cluster.gpus, cluster.now
    _require(gpus >= 1, f"gpus is {gpus}; write a number of at least 1")
    _unique([job.id for job in cluster.jobs])
    for job in cluster.jobs:
        _check_present(job, gpus, now)
    ends = [now if job.end is None else job.end for job in cluster.jobs]
    present = PresentJobs(
        [
            (job.submit, inf if job.end is None else end, 1.0)
            for job, end in zip(cluster.jobs, ends, strict=True)
        ]
    )
    jobs = {}
    for job, end in zip(cluster.jobs, ends, strict=True):
        contended = contention(present.average(job.submit, end), gpus)
        left = 0.0 if job.end is not None else job.remaining
        age = end - job.submit
        ftf = fairness_estimate(age, left, job.attained + left, contended)
        jobs[str(job.id)] = {"contention": contended, "ftf": ftf}
    there = [(job.width, job.remaining) for job in cluster.jobs if job.end is None]
    return {"bound": makespan_bound(there, gpus), "jobs": jobs}


def _check_present(job: _Present, gpus: int, now: float) -> None:
    name = f"job {job.id}"
    _require(1 <= job.width <= gpus, f"{name}: width {job.width} on {gpus} GPUs; make it fit")
    _require(job.submit <= now, f"{name}: submitted at {job.submit:g}, after now; leave it out")
    for key, value in {"attained": job.attained, "remaining": job.remaining}.items():
        mend = f"write seconds from 0 to {LARGEST:g}"
        _require(0 <= value <= LARGEST, f"{name}: {key} is {value:g}; {mend}")
    _require(job.attained + job.remaining >= LEAST, f"{name}: it takes no time; write its seconds")
    _require(
        job.end is None or job.submit <= job.end <= now,
        f"{name}: end must be between submit and now; leave it out for a job that is not over",
    )
    over = job.end is None or job.attained > 0
    _require(over, f"{name}: it is over but has attained nothing; write the seconds that it ran")


@market.command()
@click.argument("file", type=Path)
@json_option("Print all numbers as JSON.")
def equilibrium(file: Path, as_json: bool) -> None:
    """Find the equilibrium of the divisible market in FILE: gains and prices.

    FILE is JSON: {budgets, utilities[job][round]} or {budgets, needs[job][round][resource]}.
    """
    sale = read_json(file, _Sale)
    try:
        needs = _needs(sale)
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    found = find_equilibrium(sale.budgets, needs)
    linear = sale.needs is None
    prices = [row[0] for row in found.prices] if linear else found.prices
    if as_json:
        print_json({"objective": found.objective, "gains": found.gains, "prices": prices})
        return
    click.echo(f"objective {found.objective:.6g}")
    show_table("Gains", ["job", "gain"], [[str(j), f"{g:.6g}"] for j, g in enumerate(found.gains)])
    rows = [[str(t), *(f"{p:.6g}" for p in row)] for t, row in enumerate(found.prices)]
    show_table("Prices", ["round", *("price" for _ in found.prices[0])], rows)


def _needs(sale: _Sale) -> Sequence[Sequence[Sequence[float]]]:
    """Check a sale and return what a unit of gain takes. Raises ValueError."""
    given: Any = sale.utilities if sale.needs is None else sale.needs
    _require(
        given is not None and (sale.needs is None or sale.utilities is None),
        "write either utilities or needs",
    )
    _require(bool(sale.budgets), "no budgets; write one for each job")
    _require(
        len(given) == len(sale.budgets),
        f"{len(sale.budgets)} budgets for {len(given)} jobs; write one for each job",
    )
    for place, budget in enumerate(sale.budgets):
        mend = f"write numbers above 0, at most {LARGEST:g}"
        _require(LEAST <= budget <= LARGEST, f"budget {budget:g} of job {place}; {mend}")
    rounds = {len(job) for job in given}
    _require(len(rounds) == 1 and 0 not in rounds, "write as many rounds for each job, at least 1")
    flat = [value for job in given for row in job for value in (row if sale.needs else [row])]
    bounds = f"write utilities and needs from 0 to {LARGEST:g}"
    _require(all(0 <= value <= LARGEST for value in flat), bounds)
    if sale.utilities is not None:
        for place, job in enumerate(sale.utilities):
            _require(any(job), f"job {place} gains in no round; leave it out")
        return leontief(sale.utilities)
    needs: list[list[list[float]]] = given
    widths = {len(row) for job in needs for row in job}
    _require(len(widths) == 1 and 0 not in widths, "write as many resources in each round")
    for place, each in enumerate(needs):
        free = any(not any(row) for row in each)
        _require(not free, f"job {place} needs nothing in a round; write what a unit takes")
    return needs
