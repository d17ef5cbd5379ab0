"""Run the oracle and other policies on the paper's workloads, on one slot grid (Figs. 5, 24)."""

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
"""Labels of SIA with forecasts that a live system can make: the most careful and the least
careful."""

POLICIES = (BASELINE, "ssf", "gssf", "mmfs", *LEARNED, "sia", "sia-vc")
"""The policies of §4.1, and SIA."""


class Case(NamedTuple):
    """A workload of a study. `run` is its number among all possible workloads."""

    run: int
    preset: str
    seed: int


class StudySettings(NamedTuple):
    """Slot length, length of the workload, and time limit of the oracle, all in seconds."""

    slot: float
    window: float
    seconds: float


def cases_of(presets: Sequence[str], repetitions: int) -> list[Case]:
    """Return each preset with seeds from 1. Their numbers do not depend on the other presets."""
    names = [*PRESETS]
    return [
        Case((seed - 1) * len(names) + names.index(preset), preset, seed)
        for preset in dict.fromkeys(presets)
        for seed in range(1, repetitions + 1)
    ]


def refuse(cases: Sequence[Case], settings: StudySettings) -> None:
    """Raise UserError if a workload cannot be generated or is too large, before any is solved."""
    for case in cases:
        log, table = workload(case, settings)
        refuse_too_large(instance_of(log, table, settings.slot, Goal()).problems, "step")


def workload(case: Case, settings: StudySettings) -> tuple[Trace, PoolTable]:
    """Generate the jobs and pools as `sia trace synth` does. Raises UserError."""
    try:
        return synthesize(PRESETS[case.preset], case.seed, settings.window / DAY)
    except UserError as error:
        why = str(error).partition(": ")[2]
        raise UserError(f"--window {as_typed(settings.window)}: {why}") from None


def past(case: Case, settings: StudySettings) -> PastJobs:
    """Generate a history for forecasts: jobs of the same queues before the workload."""
    log, table = synthesize(PRESETS[case.preset], case.seed, SPAN / DAY, past=True)
    jobs = slotted(log, settings.slot)
    pairs = zip(jobs.arrivals, starts_of(jobs, table), strict=True)
    starts = {a.job.id: start for a, start in pairs if start is not None}
    return past_of(jobs.arrivals, starts, table, SPAN)


def study(
    case: Case, settings: StudySettings, folder: Path, progress: ProgressCallback
) -> RunResult:
    """Solve a workload, replay the other policies, and write the results into `folder`."""
    log, table = workload(case, settings)
    outcome = run(
        log,
        table,
        SolveSettings(settings.slot, settings.seconds),
        perf_counter(),
        progress=progress,
    )
    if outcome.status != "interrupted":
        write_json(folder / "run.json", described(case, outcome, past(case, settings)))
        write_schedule_of(folder, outcome)
    return outcome


def described(case: Case, outcome: RunResult, known: PastJobs) -> dict[str, Any]:
    """Return the contents of `run.json`, without wall-clock times."""
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
