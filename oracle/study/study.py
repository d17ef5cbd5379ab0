"""The oracle and its rivals on the paper's synthetic workloads, on the same grid (Figs. 5, 24)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from oracle.bounds.size import refuse_too_large
from oracle.problem.problem import Goal
from oracle.problem.slots import slotted
from oracle.run.output import write_schedule_of
from oracle.run.run import RunResult, SolveSettings, instance_of, measured, run, waiting
from oracle.search.answer import ProgressCallback
from replay.logs.past import SPAN, PastJobs, past_of
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_json
from replay.run.run import BASELINE, Settings, replay_one
from replay.run.schedule import Schedule
from replay.run.starts import starts_of
from replay.synthetic.paper import PRESETS, synthesize
from sia.console.errors import UserError
from sia.wording import DAY, MINUTE, as_typed

ORACLE = "oracle"

LEARNED = ("sia@peaks+survival", "sia@none+history")
"""SIA with what a live system could have known: the most careful forecasts, and the least."""

POLICIES = (BASELINE, "ssf", "gssf", "mmfs", *LEARNED, "sia", "sia-vc")
"""The rivals of §4.1, and SIA."""


class Case(NamedTuple):
    """A workload that is studied: `run` numbers it among all there could be."""

    run: int
    preset: str
    seed: int


class StudySettings(NamedTuple):
    """What is asked of each: a grid, a length, a time limit for the oracle (all in seconds)."""

    slot: float
    window: float
    seconds: float


def cases_of(presets: Sequence[str], repetitions: int) -> list[Case]:
    """Each preset with seeds from 1 on. More presets or repetitions number none of them anew."""
    names = [*PRESETS]
    return [
        Case((seed - 1) * len(names) + names.index(preset), preset, seed)
        for preset in dict.fromkeys(presets)
        for seed in range(1, repetitions + 1)
    ]


def refuse(cases: Sequence[Case], asked: StudySettings) -> None:
    """Raise UserError where one of them cannot be made, or does not fit, before any is solved."""
    for case in cases:
        log, table = workload(case, asked)
        refuse_too_large(instance_of(log, table, asked.slot, Goal()).problems, "step")


def workload(case: Case, asked: StudySettings) -> tuple[Trace, PoolTable]:
    """The jobs that `sia trace synth` makes for so long. Raises UserError."""
    try:
        return synthesize(PRESETS[case.preset], case.seed, asked.window / DAY)
    except UserError as error:
        why = str(error).partition(": ")[2]
        raise UserError(f"--window {as_typed(asked.window)}: {why}") from None


def past(case: Case, asked: StudySettings) -> PastJobs:
    """What forecasts may have learned from: jobs of the same queues, as they could have had before.

    None of the window is among them.
    """
    log, table = synthesize(PRESETS[case.preset], case.seed, SPAN / DAY, past=True)
    jobs = slotted(log, asked.slot)
    pairs = zip(jobs.arrivals, starts_of(jobs, table), strict=True)
    starts = {a.job.id: start for a, start in pairs if start is not None}
    return past_of(jobs.arrivals, starts, table, SPAN)


def study(case: Case, asked: StudySettings, folder: Path, tell: ProgressCallback) -> RunResult:
    """Solve one and replay its rivals; write what came of it into `folder`."""
    log, table = workload(case, asked)
    outcome = run(log, table, SolveSettings(asked.slot, asked.seconds), perf_counter(), tell=tell)
    if outcome.status != "interrupted":
        write_json(folder / "run.json", described(case, outcome, past(case, asked)))
        write_schedule_of(folder, outcome)
    return outcome


def described(case: Case, outcome: RunResult, known: PastJobs) -> dict[str, Any]:
    """What stands in `run.json`: nothing of it is a time on the wall."""
    instance = outcome.instance
    trace, table, baseline = instance.trace, instance.table, instance.baseline
    settings = Settings([*POLICIES])
    schedules = {
        label: replay_one(trace, table, label, settings, baseline, past=known) for label in POLICIES
    }
    schedules[ORACLE] = outcome.schedule
    return {
        **case._asdict(),
        "jobs": len(trace.arrivals),
        "pools": len(table.pools),
        "gpus": sum(pool.quota for pool in table.pools),
        "status": outcome.status,
        "bound_wait_min": outcome.wait_bound / MINUTE,
        "gap_pct": 100 * outcome.gap,
        "policies": {
            label: _measures(trace, baseline, schedule) for label, schedule in schedules.items()
        },
    }


def _measures(trace: Trace, baseline: Schedule, schedule: Schedule) -> dict[str, Any]:
    found = measured(trace, baseline, schedule)
    return {**msgspec.structs.asdict(found), "wait_min": waiting(trace, schedule) / MINUTE}
