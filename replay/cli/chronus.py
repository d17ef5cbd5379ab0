"""`sia chronus`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import click

from replay.cli.options import solve_options
from replay.logs.nodes import read_nodes
from replay.logs.read import read_trace
from replay.logs.speeds import read_speeds
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.text import BoundedFloatType, Seconds
from sia.contract.solvers import chosen, solve
from sia.limits import MAX_GROUP
from sia.model import Job
from sia.policies.chronus.book import MOST_LEASES
from sia.policies.chronus.iterations import run_seconds
from sia.policies.chronus.leases.claims import (
    Claim,
    LeasePlan,
    first_lease,
    lease_cost,
    leases_before,
    leases_needed,
)
from sia.policies.chronus.leases.free import Room
from sia.policies.chronus.leases.lists import delay, is_impossible, joined, listed
from sia.policies.chronus.leases.programs import (
    LeaseGoal,
    LeaseProgram,
    TargetProgram,
    lease_program,
)
from sia.policies.chronus.leases.selection import Selection
from sia.policies.chronus.leases.sizes import NODE_GPUS, NodeSizes
from sia.policies.chronus.params import MAX_SEARCH, SEARCH
from sia.policies.chronus.placing.placement import WIDE, Nodes, PlacedJob, place_all
from sia.state.speeds import Speeds
from sia.wording import as_typed, counted

MOST_IN_ORDER = 40
"""Maximum number of jobs among which ties are broken exactly by arrival, with a program per job."""


class PlainSeconds(Seconds):
    """A time like 20m, or a plain number of seconds, as in labels and logs."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        text = str(value)
        return super().convert(f"{text}s" if text.replace(".", "", 1).isdecimal() else text,
                               param, ctx)  # fmt: skip


@click.group(cls=Group)
def chronus() -> None:
    """Plan leases, place jobs and estimate run times as policy chronus does."""


class _Solver(NamedTuple):
    """How programs are solved."""

    name: str | None
    seconds: float

    def values(
        self, asked: LeaseProgram | TargetProgram, start: Sequence[float] | None
    ) -> list[float] | None:
        """Return the solution; None if it is infeasible. Raises UserError if it takes too long."""
        solved = solve(
            asked.program, seconds=self.seconds, start=start, heuristics=True, solver=self.name
        )
        if solved.status not in ("optimal", "infeasible"):
            raise UserError(
                f"--seconds {self.seconds:g}s: the program was not solved in time; give it more"
            )
        return solved.values


@chronus.command("solve")
@click.option("--trace", "log", type=Path, required=True, help="Job log of the waiting jobs.")
@click.option("--gpus", type=click.IntRange(1, MAX_GROUP), required=True, help="GPUs to plan with.")
@click.option(
    "--lease", type=PlainSeconds(), default="20m", show_default=True, help="Length of a lease."
)
@click.option(
    "--now",
    type=PlainSeconds(),
    default="0",
    show_default=True,
    help="Present time of the log.",
)
@click.option(
    "--resume-cost",
    type=PlainSeconds(),
    default="0",
    show_default=True,
    help="Time that resuming takes a job without a time in column preemptible.",
)
@click.option("--no-round-up", is_flag=True, help="Do not round widths up to 1, 2, 4, 8, …")
@solve_options
@json_option()
def solve_leases(
    log: Path, gpus: int, lease: float, now: float, resume_cost: float, no_round_up: bool,
    solver: str | None, limit: float, as_json: bool,
) -> None:  # fmt: skip
    """Plan leases for the jobs of a log that have a deadline.

    All jobs wait now, and their durations are what remains of them. Lease 0 is the first one that
    can begin.
    """
    if not lease:
        raise UserError("--lease: must be above 0; write a time like 20m")
    chosen(solver)
    sizes = NodeSizes(gpus, NODE_GPUS, round_up=not no_round_up)
    trace = read_trace(log)
    begin = first_lease(now, lease) * lease
    claims, refused = [], dict[str, str]()
    for job, remaining in trace.arrivals:
        cost = _cost_of(log, job, resume_cost, lease)
        steps = leases_before(job.steps, begin, lease)
        if not steps:
            refused[job.id] = "it has no deadline"
        elif cost >= lease:
            refused[job.id] = "a stop would cost it all its work, or is not allowed"
        elif (needed := leases_needed(remaining, lease, cost)) > MOST_LEASES:
            refused[job.id] = f"it would need more than {MOST_LEASES:,} leases"
        else:
            claims.append(Claim(job.id, sizes.uses(job.width), needed, steps))
    solving = _Solver(solver, limit)
    plan, kept = _admit(claims, sizes.room, solving)
    plan = _select(kept, sizes.room, plan, solving)
    found = {claim.job_id: claim for claim in kept}
    jobs = [_shown(job.id, found.get(job.id), plan) for job, _ in trace.arrivals]
    objective = sum(claim.earned(plan[claim.job_id]) for claim in kept)
    answer = {"objective": objective, "soonest": delay(kept, plan), "jobs": jobs}
    if as_json:
        print_json(answer)
        return
    click.echo(f"objective: {objective:g}; soonest: {answer['soonest']}")
    for each in jobs:
        leases = ", ".join(map(str, each["leases"]))
        said = f"guaranteed, step {each['step']}, leases {leases}"
        if not each["guaranteed"]:
            why = refused.get(each["job_id"])
            said = "not guaranteed" if why is None else f"not guaranteed: {why}"
        click.echo(f"{each['job_id']}: {said}")


def _cost_of(log: Path, job: Job, resume_cost: float, lease: float) -> float:
    """Return the seconds that a job needs to resume. Raises UserError if it is a lease or more."""
    cost = lease_cost(job, resume_cost)
    if job.deadline is not None and lease <= cost < float("inf"):
        raise UserError(
            f"{log}: job {job.id}: going on costs {cost:g} s, a lease is {lease:g} s; give a "
            f"--lease above {as_typed(cost)}"
        )
    return cost


def _shown(job_id: str, claim: Claim | None, plan: LeasePlan) -> dict[str, Any]:
    if claim is None:
        return {"job_id": job_id, "guaranteed": False, "step": None, "leases": []}
    leases = plan[job_id]
    return {
        "job_id": job_id, "guaranteed": True, "step": claim.met(leases), "leases": list(leases),
    }  # fmt: skip


def _admit(claims: Sequence[Claim], room: Room, solving: _Solver) -> tuple[LeasePlan, list[Claim]]:
    """Admit jobs one by one: a job is guaranteed if some plan meets the last step of all so far."""
    plan, kept = LeasePlan(), list[Claim]()
    for claim in claims:
        both = [*kept, claim]
        if is_impossible(both, room):
            continue
        found = joined(kept, room, plan, claim) or listed(both, room)
        if found is None:
            asked = lease_program(both, room, LeaseGoal.ANY)
            values = solving.values(asked, None)
            if values is None:
                continue
            found = asked.plan_of(both, values)
        plan, kept = found, both
    return plan, kept


def _select(claims: Sequence[Claim], room: Room, plan: LeasePlan, solving: _Solver) -> LeasePlan:
    """Return the plan with the most reward; among equals the soonest, then the one by arrival."""
    selection = Selection.of(claims, room, plan)
    assert selection is not None, "the plan of the admission is one"
    while (asked := selection.question) is not None:
        selection.take(solving.values(*asked) or ())
    if len(claims) <= MOST_IN_ORDER:
        for number in range(len(claims)):
            if (tie := selection.tie(number)) is None:
                break
            selection.take_tie(solving.values(*tie) or ())
    return selection.plan


@chronus.command()
@click.option("--t1", "one", type=BoundedFloatType(0, min_open=True), required=True, metavar="S",
              help="Seconds of an iteration on one node.")  # fmt: skip
@click.option("--t2", "two", type=BoundedFloatType(0, min_open=True), metavar="S",
              help="Seconds of an iteration on two nodes.  [default: as on one]")  # fmt: skip
@click.option("--gpus", type=click.IntRange(1, MAX_GROUP), required=True, help="GPUs of the job.")
@click.option(
    "--node-gpus",
    type=click.IntRange(1, MAX_GROUP),
    default=NODE_GPUS,
    show_default=True,
    help="GPUs of a node.",
)
@click.option("--iterations", type=BoundedFloatType(0, min_open=True), required=True,
              help="Iterations of the whole job.")  # fmt: skip
@json_option()
def estimate(
    one: float, two: float | None, gpus: int, node_gpus: int, iterations: float, as_json: bool
) -> None:
    """Estimate a run time from trials on one node and on two."""
    nodes = -(-gpus // node_gpus)
    if two is None and nodes > 1:
        raise UserError(f"--t2: the job needs {nodes} nodes; give the seconds on two")
    seconds = run_seconds(one, one if two is None else two, gpus, node_gpus, iterations)
    if seconds == inf:
        raise UserError("--iterations: the run time is too long for a number; give fewer")
    if as_json:
        print_json({"seconds": seconds})
        return
    click.echo(f"{seconds:g} s on {counted(nodes, 'node')}")


@chronus.command()
@click.option("--nodes", "cluster", type=Path, required=True, help="Nodes file: node,gpus[,free].")
@click.option("--trace", "log", type=Path, required=True, help="Job log of the jobs to place.")
@click.option("--speeds", "table", type=Path, help="Speeds file: model,gpus,nodes,speed.")
@click.option(
    "--search",
    type=click.IntRange(0, MAX_SEARCH),
    default=SEARCH,
    show_default=True,
    help="Maximum of combined placements that the local search tries.",
)
@json_option()
def place(cluster: Path, log: Path, table: Path | None, search: int, as_json: bool) -> None:
    """Place jobs on nodes; jobs without a deadline below 16 GPUs by a local search."""
    nodes = read_nodes(cluster)
    speeds = Speeds() if table is None else read_speeds(table)
    trace = read_trace(log)
    promised, wide, small = list[PlacedJob](), list[PlacedJob](), list[PlacedJob]()
    models = _models(trace.columns)
    for job, _ in trace.arrivals:
        extras = trace.extras.get(job.id, ())
        model = getattr(job, "model", "") or (extras[models].strip() if models >= 0 else "")
        kind = promised if job.deadline is not None else wide if job.width >= WIDE else small
        kind.append(PlacedJob(job.id, job.width, model))
    free = Nodes(tuple(node.gpus for node in nodes), tuple(node.usable for node in nodes))
    placed, objective = place_all(free, speeds, (promised, wide), small, search)
    jobs: list[dict[str, Any]] = [
        {"job_id": job.id, "nodes": {nodes[n].name: gpus for n, gpus in placed[job.id].items()}}
        for job, _ in trace.arrivals
        if job.id in placed
    ]
    unplaced = [job.id for job, _ in trace.arrivals if job.id not in placed]
    if as_json:
        print_json({"objective": objective, "jobs": jobs, "unplaced": unplaced})
        return
    click.echo(f"objective: {objective:g}")
    for each in jobs:
        where = ", ".join(f"{gpus} of {node}" for node, gpus in each["nodes"].items())
        click.echo(f"{each['job_id']}: {where}")
    if unplaced:
        click.echo(f"not placed: {', '.join(unplaced)}")


def _models(columns: Sequence[str]) -> int:
    """Return the index of column `model` in the extra columns, or -1."""
    return columns.index("model") if "model" in columns else -1
