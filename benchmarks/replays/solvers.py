"""Time to build a program through PuLP and directly, to solve it, and to reach the solver process.

.venv/bin/python -m benchmarks.replays.solvers

The programs choose starts of jobs: 20 slots and one row for each job, and one row for each slot of
which every job uses four. HiGHS solves each to a gap of a thousandth.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from random import Random
from time import perf_counter, process_time
from typing import Any

import pulp
from msgspec import json

from benchmarks.common import keep, spread
from daemon.model.inputs import Answered
from daemon.service.solving.frames import ChildAnswer
from daemon.service.solving.runner import SolverProcess
from oracle.solver.highs import highs_model
from oracle.solver.in_pulp import in_pulp
from sia.contract.solvers import SolverRequest, answer, verified
from sia.decisions import SolveProgram
from sia.program import Program, ProgramBuilder, SolveLimit

READS = """
import sys
from daemon.service.solving import child
from sia.contract.solvers import failed
child.answer = lambda now, asked, **_: failed(now, asked, "only read")
child.serve(sys.stdin.buffer, sys.stdout.buffer, None)
"""
"""A child that reads requests as the solver process does, and solves none."""

SIZES = (100, 1_000, 10_000, 50_000)
SLOTS, LENGTH = 20, 4
RUNS, WAYS = 5, 30
LIMIT = SolveLimit(seconds=120.0, nodes=100, iterations=10**9, gap=1e-3)


def starts_of_jobs(columns: int) -> Program:
    """Each job starts in one slot or in none; half of them fit."""
    random, builder = Random(1), ProgramBuilder()
    used: list[dict[int, float]] = [{} for _ in range(SLOTS + LENGTH)]
    jobs = columns // SLOTS
    widths = [random.choice((1.0, 2.0, 4.0, 8.0)) for _ in range(jobs)]
    for width in widths:
        value = random.uniform(1.0, 2.0) * width
        first = builder.binaries([-value * (1.0 - 0.02 * slot) for slot in range(SLOTS)])
        builder.at_most(dict.fromkeys(range(first, first + SLOTS), 1.0), 1.0)
        for slot in range(SLOTS):
            for later in range(slot, slot + LENGTH):
                used[later][first + slot] = width
    room = float(int(sum(widths) * LENGTH / SLOTS / 2) + 8)
    for terms in used[:SLOTS]:
        builder.at_most(terms, room)
    return builder.build()


def timed(call: Any) -> float:
    """Return the CPU seconds of a call, which do not count other processes."""
    gc.collect()
    began = process_time()
    call()
    return process_time() - began


def through_pulp(program: Program) -> None:
    problem, _ = in_pulp(program)
    solver = pulp.HiGHS(mip=True, msg=False, threads=1)
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)


def directly(program: Program) -> None:
    highs_model(program, SolverRequest())


async def reaches(asked: SolveProgram) -> dict[str, Any]:
    """Time until the process has read and decoded a request, and its short answer is back."""
    child = await SolverProcess.start([sys.executable, "-c", READS])
    await child.ask(asked)  # the child has started up
    ways = []
    for _ in range(WAYS):
        began = perf_counter()
        await child.ask(asked)
        ways.append(perf_counter() - began)
    child.kill()
    await child.gone()
    return spread(ways)


def measured(columns: int) -> dict[str, Any]:
    program = starts_of_jobs(columns)
    asked = SolveProgram(1, program, LIMIT)
    began = process_time()
    event, why = answer(0.0, asked, timed=False)
    solve = process_time() - began
    body = json.encode(asked)
    encoded = json.encode(ChildAnswer(event, why))
    return {
        "columns": len(program.costs),
        "rows": len(program.row_lows),
        "nonzeros": program.nonzeros,
        "json_mb": round(len(body) / 1e6, 2),
        "builder_s": spread([timed(lambda: starts_of_jobs(columns)) for _ in range(RUNS)]),
        "pulp_s": spread([timed(lambda: through_pulp(program)) for _ in range(RUNS)]),
        "direct_s": spread(
            [timed(lambda: highs_model(program, SolverRequest())) for _ in range(RUNS)]
        ),
        "solve_s": round(solve, 3),
        "status": event.status,
        "encode_s": spread([timed(lambda: json.encode(asked)) for _ in range(RUNS)]),
        "decode_in_child_s": spread(
            [timed(lambda: json.decode(body, type=SolveProgram)) for _ in range(RUNS)]
        ),
        "reaches_child_s": asyncio.run(reaches(asked)),
        "answer_kb": round(len(encoded) / 1e3, 1),
        "decode_answer_s": spread(
            [timed(lambda: json.decode(encoded, type=ChildAnswer)) for _ in range(RUNS)]
        ),
        "verify_s": spread([timed(lambda: verified(asked, event)) for _ in range(RUNS)]),
        "journal_kb": round(
            len(json.encode(Answered(1, event.status, event.values, event.bound))) / 1e3, 1
        ),
    }


def main() -> None:
    keep("replays/solvers", {"programs": {str(columns): measured(columns) for columns in SIZES}})


if __name__ == "__main__":
    main()
