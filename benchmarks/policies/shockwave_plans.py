"""How long a plan of Shockwave's market takes, with a solver and greedily, and how good it is.

Jobs are those of Shockwave's log of 900 jobs, each somewhere in its life, with an estimated
finish-time fairness around 1. Also how long a daemon's loop is held: by asking for a plan, by
taking one, and by `sia why` for a job when all jobs are present (the least of five times each).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from random import Random
from time import process_time
from typing import Any

from msgspec.structs import replace

from benchmarks.common import TRACES, keep
from replay.logs.read import read_trace
from sia import Core, Pool
from sia.contract.solvers import solve
from sia.core.playout import Arrival, no_solver, play
from sia.policies import make
from sia.policies.shockwave.foresight import foreseen
from sia.policies.shockwave.market import (
    Market,
    MarketJob,
    best_plan,
    counts_of,
    program,
    start_of,
)
from sia.policies.shockwave.policy import SOLVE_GAP, SOLVE_LIMIT

SIZES = ((300, 128), (900, 256), (500, 256), (1000, 256), (2000, 256))
"""Jobs and GPUs; the last three are those of the paper's Fig. 12."""


def some_jobs(number: int) -> list[Arrival]:
    """Return so many jobs of the log, each once more where it has too few."""
    log = read_trace(TRACES / "shockwave_900.csv.gz").arrivals
    return [
        Arrival(replace(job, id=f"{job.id}/{i}"), takes)
        for i, (job, takes) in enumerate(islice(cycle(log), number))
    ]


def market(jobs: int, gpus: int) -> Market:
    """Return a market of so many jobs, a window of 20 rounds, and the usual options."""
    random, buyers = Random(1), []
    for job, duration in some_jobs(jobs):
        seen = foreseen(
            "restate", job.mode, job.regimes, random.choice((0.0, random.random())) * duration
        )
        ahead = seen.ahead()
        done = seen.done
        buyers.append(
            MarketJob(
                job.id, job.width, done, done + sum(epochs for epochs, _ in ahead), seen.total,
                random.uniform(0.6, 1.4), ahead, 1.0, running=random.random() < gpus / jobs,
            )
        )  # fmt: skip
    return Market(gpus, 120.0, 20, 5.0, 1.0, buyers)


def least(call: Callable[[], object]) -> float:
    """Return the least processor time of five calls, in milliseconds."""
    times = []
    for _ in range(5):
        began = process_time()
        call()
        times.append(process_time() - began)
    return round(1000 * min(times), 1)


def why(jobs: int, gpus: int) -> float:
    """Return the milliseconds in which a policy with so many jobs says what it plans for one."""
    core = Core([Pool("all", gpus)], make("shockwave"))
    arrivals = [Arrival(job.submitted_at(0.0), takes) for job, takes in some_jobs(jobs)]
    for _ in play(core, arrivals, solve=no_solver):
        first = next(iter(core.state.jobs.values()))
        if core.policy.outlook(first) is not None:
            assert len(core.state.jobs) == jobs
            return least(partial(core.policy.outlook, first))
    raise RuntimeError("no plan was made")


def main() -> None:
    """Plan each size once, and store what it took."""
    results: dict[str, Any] = {}
    for jobs, gpus in SIZES:
        found = market(jobs, gpus)
        began = process_time()
        rough = best_plan(found, None)
        greedy = process_time() - began
        began = process_time()
        answer = solve(
            program([found]), start=start_of([found]), gap=SOLVE_GAP, nodes=SOLVE_LIMIT.nodes,
            iterations=SOLVE_LIMIT.iterations, heuristics=True,
        )  # fmt: skip
        counts = None if answer.values is None else counts_of([found], answer.values)[0]
        plan = best_plan(found, counts)
        bound = -answer.bound / found.scale
        results[f"{jobs} jobs, {gpus} GPUs"] = {
            "seconds": round(process_time() - began, 2), "status": answer.status,
            "gap": (bound - plan.objective) / abs(plan.objective),
            "greedy_seconds": round(greedy, 2),
            "greedy_gap": (bound - rough.objective) / abs(rough.objective),
            "asking_ms": least(lambda: (program([found]), start_of([found]))),  # noqa: B023
            "taking_ms": least(lambda: best_plan(found, counts)),  # noqa: B023
            "why_ms": why(jobs, gpus),
        }  # fmt: skip
        print(jobs, gpus, results[f"{jobs} jobs, {gpus} GPUs"], flush=True)
    keep("policies/shockwave_plans", results)


if __name__ == "__main__":
    main()
