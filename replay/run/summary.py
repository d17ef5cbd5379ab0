"""The measures of a replay, for `summary.json` and the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import fsum, log
from typing import Any

import msgspec

from replay.deadlines.rewards import deadline_measures
from replay.logs.trace import PoolTable, Trace
from replay.run.metrics import measure
from replay.run.predictions import ToldJob, measure_predictions
from replay.run.run import Settings, known_in_advance
from replay.run.schedule import Result, Schedule, Segment
from replay.run.solving import ReplaySolver
from sia import __version__
from sia.contract.labels import name_of
from sia.limits import LAS_PROMOTE, LAS_THRESHOLDS, RECALL


def summarize(table: PoolTable, settings: Settings, results: Sequence[Result]) -> dict[str, Any]:
    """Return all measures of all policies as plain values, without wall-clock times."""
    trace = results[0].loop.log if results[0].loop else results[0].trace
    policies = {r.schedule.policy: _policy(table, settings, r) for r in results}
    _add_captured(policies, settings)
    las, recall = (settings.params.get(name, {}) for name in ("las", "sia-recall"))
    return {
        "version": __version__,
        "seed": settings.seed,
        "configuration": {
            "policies": list(settings.policies),
            "forecast": settings.forecast,
            "durations": settings.durations,
            "load_quantile": settings.load_quantile,
            "run_time_quantile": settings.run_time_quantile,
            "max_slowed_pct": settings.max_slowed_pct,
            "model": None if settings.model is None else settings.model.checksum,
            "recent_windows": settings.recent,
            "windows_s": list(settings.options.windows),
            "warmup_s": settings.warmup,
            "slack": settings.options.slack,
            "spare_priority": dict(sorted(settings.options.spare_priority.items())),
            "no_lending": [list(pair) for pair in sorted(settings.options.no_lending)],
            "resume_cost_s": settings.options.resume_cost,
            **({"owners": True} if settings.options.owners else {}),
            "preemptible": settings.preemptible,
            "recall": recall.get("recall", RECALL),
            "cells": settings.cells is not None,
            **({"nodes": len(settings.nodes)} if settings.nodes else {}),
            **({"speeds": len(settings.speeds)} if settings.speeds else {}),
            "las_thresholds_gpu_s": list(las.get("thresholds", LAS_THRESHOLDS)),
            "las_promote": las.get("promote", LAS_PROMOTE),
            "closed_loop": settings.closed_loop,
            **_solver(settings, results),
        },
        "trace": {
            "jobs": len(trace.arrivals),
            "dropped": dict(sorted(trace.dropped.items())),
            "notes": trace.notes,
            "pools": len(table.pools),
        },
        "policies": policies,
    }


def _add_captured(policies: dict[str, dict[str, Any]], settings: Settings) -> None:
    """Add the share of the gain of perfect `sia` that each policy captured, if that is known.

    Perfect `sia` has perfect forecasts. The gain is the logarithm of the geometric mean speed-up.
    """
    known = (label for label in policies if name_of(label) == "sia")
    unit = next((label for label in known if len(known_in_advance(settings, label)) == 2), None)
    best = policies[unit]["speedup_geomean"] if unit is not None else None
    if best is not None and best > 1.0:
        for measures in policies.values():
            mean = measures["speedup_geomean"]
            measures["captured"] = None if mean is None else log(mean) / log(best)


def _solver(settings: Settings, results: Sequence[Result]) -> dict[str, Any]:
    """Return the settings of the solver, if a policy needs one."""
    if all(result.schedule.solver is None for result in results):
        return {}
    return {"solver": settings.solver, "solver_latency_s": settings.solver_latency}


def _solves(solver: ReplaySolver | None) -> dict[str, Any]:
    """Return how many programs a policy had solved, and how many of them the solver failed."""
    if solver is None:
        return {}
    failed = {"programs_failed_why": solver.why} if solver.failed else {}
    return {"programs": solver.solved, "programs_failed": solver.failed, **failed}


def _policy(table: PoolTable, settings: Settings, result: Result) -> dict[str, Any]:
    trace, schedule = result.trace, result.schedule
    by_pool: dict[str, list[int]] = {pool.name: [] for pool in sorted(table.pools, key=_name)}
    for i, arrival in enumerate(trace.arrivals):
        by_pool[arrival.job.pool].append(i)
    widths = [arrival.job.width for arrival in trace.arrivals]
    durations = [arrival.duration for arrival in trace.arrivals]
    pairs = jct_pairs(result, settings)
    begin, end = span(trace, settings)
    owned_by = owned_seconds(table, begin, end)
    owned = fsum(owned_by.values())
    largest = {name: max(q for _, q in steps) for name, steps in table.quotas().items()}
    lent: dict[str, list[float]] = {name: [] for name in by_pool}
    borrowed: dict[str, list[float]] = {name: [] for name in by_pool}
    pool_of = {arrival.job.id: arrival.job.pool for arrival in trace.arrivals}
    for loan in schedule.loans:
        if loan.donor != pool_of[loan.job_id]:
            hours = loan.gpus * (loan.end - loan.start) / 3600
            lent[loan.donor].append(hours)
            borrowed[pool_of[loan.job_id]].append(hours)
    too_wide = schedule.too_wide
    unfinished = schedule.ends.count(None) - too_wide
    ends = [end for end in schedule.ends if end is not None]
    return {
        "jobs": len(trace.arrivals) - unfinished - too_wide,
        "skipped": sum(trace.dropped.values()) + too_wide,
        **({"too_wide": too_wide} if too_wide else {}),
        "never_ended": unfinished,
        "baseline_never_ended": result.baseline.ends.count(None) - result.baseline.too_wide,
        **_measures(pairs),
        **deadline_measures(trace, schedule.ends, settings.warmup),
        **_predictions(result, settings),
        **({"ends_sooner_s": result.loop.sooner} if result.loop else {}),
        **({"progress_reports": schedule.reports} if schedule.reports else {}),
        **_solves(schedule.solver),
        "peak_gpus": schedule.peak_gpus,
        "total_gpus": sum(largest.values()),
        "makespan_s": max(ends) - trace.arrivals[0].job.submit if ends else None,
        "utilisation_pct": _share(used_seconds(trace, schedule, begin, end), owned),
        "gpu_hours_lent": fsum(hour for hours in lent.values() for hour in hours),
        **_wasted(trace, schedule, settings),
        **(
            {"late_turns": len(late)}
            if (late := schedule.tables.get("late_turns")) is not None
            else {}
        ),
        "pools": {
            name: {
                "quota": largest[name],
                "jobs": len(jobs),
                **_measures(pairs[i] for i in jobs),
                "median_width": _median(widths[i] for i in jobs),
                "median_duration_s": _median(durations[i] for i in jobs),
                "load_pct": _share(
                    fsum(
                        widths[i] * durations[i]
                        for i in jobs
                        if begin <= trace.arrivals[i].job.submit <= end
                    ),
                    owned_by[name],
                ),
                "gpu_hours_lent": fsum(lent[name]),
                "gpu_hours_borrowed": fsum(borrowed[name]),
            }
            for name, jobs in by_pool.items()
        },
    }


def _predictions(result: Result, settings: Settings) -> dict[str, Any]:
    """Return the errors and unfairness of predicted ends, if there are predictions."""
    schedule = result.schedule
    if schedule.predictions is None or schedule.fair_ends is None:
        return {}
    outcomes = [
        ToldJob(job.submit, told, fair, end)
        for (job, _), told, fair, end in zip(
            result.trace.arrivals,
            schedule.predictions,
            schedule.fair_ends,
            schedule.ends,
            strict=True,
        )
        if end is not None and job.submit >= settings.warmup
    ]
    return dict(msgspec.structs.asdict(measure_predictions(outcomes)))


def _wasted(trace: Trace, schedule: Schedule, settings: Settings) -> dict[str, Any]:
    """Return the number of preemptions and resizes, and the GPU-hours that they wasted."""
    if schedule.segments is None:
        return _stops(trace, schedule) | {
            "interruptions": 0, "gpu_hours_thrown_away": 0.0, "gpu_time_wasted_pct": 0.0,
        }  # fmt: skip
    runs = Counter(segment.job_id for segment in schedule.segments)
    jobs = {job.id: job for job, _ in trace.arrivals if runs[job.id] > 1}
    done: dict[str, float] = {}  # seconds of work at the job's own width
    latest: dict[str, Segment] = {}
    lost = []
    for segment in schedule.segments:
        if runs[segment.job_id] == 1:  # the most frequent case: nothing was lost before
            latest[segment.job_id] = segment
            continue
        job, ran = jobs[segment.job_id], segment.end - segment.start
        before, paid = latest.get(job.id), 0.0
        if before is not None and before.killed:
            lost.append(_gpu_hours(before))
            done[job.id] = 0.0
        elif before is not None:
            own, work = job.stop_seconds, done[job.id]
            resume_cost = settings.options.resume_cost if work else 0.0
            paid = min(ran, resume_cost if own is None else min(own, work))
            lost.append(paid * segment.width / 3600)
        done[job.id] = done.get(job.id, 0.0) + (ran - paid) * job.speed(segment.width)
        latest[job.id] = segment
    for (job, _), end in zip(trace.arrivals, schedule.ends, strict=True):
        if end is None and job.id in latest and latest[job.id].killed:
            lost.append(_gpu_hours(latest[job.id]))  # it was stopped and never ran again
    needed = fsum(job.width * seconds for job, seconds in trace.arrivals) / 3600
    return _stops(trace, schedule) | {
        "interruptions": len(lost),
        "gpu_hours_thrown_away": fsum(lost),
        "gpu_time_wasted_pct": _share(fsum(lost), needed),
    }


def _stops(trace: Trace, schedule: Schedule) -> dict[str, Any]:
    """Return how often jobs were stopped."""
    stops = schedule.stops
    return {
        "stops_for_100_jobs": _share(stops.total(), len(trace.arrivals)),
        "most_stops_of_a_job": max(stops.values(), default=0),
    }


def _gpu_hours(segment: Segment) -> float:
    return (segment.end - segment.start) * segment.width / 3600


def _name(pool: Any) -> str:
    return str(pool.name)


def span(trace: Trace, settings: Settings) -> tuple[float, float]:
    """Return the time span of the measures, in seconds.

    It begins at the end of the warm-up or the first submission, whichever is later, and ends at the
    last submission: afterwards the cluster only drains.
    """
    if not trace.arrivals:
        return 0.0, 0.0
    last = trace.arrivals[-1].job.submit
    return min(last, max(settings.warmup, trace.arrivals[0].job.submit)), last


def owned_seconds(table: PoolTable, begin: float, end: float) -> dict[str, float]:
    """Return the GPU-seconds that each pool owns between two times."""
    owned = {}
    for pool, steps in table.quotas().items():
        stops = [time for time, _ in steps[1:]] + [end]
        owned[pool] = fsum(
            quota * max(0.0, min(stop, end) - max(start, begin))
            for (start, quota), stop in zip(steps, stops, strict=True)
        )
    return owned


def used_seconds(trace: Trace, schedule: Schedule, begin: float, end: float) -> float:
    """Return the GPU-seconds used between two times."""
    if schedule.segments is not None:
        runs = [(each.width, each.start, each.end) for each in schedule.segments]
    else:
        runs = [
            (job.width, start, stop)
            for (job, _), start, stop in zip(
                trace.arrivals, schedule.starts, schedule.ends, strict=True
            )
            if start is not None and stop is not None
        ]
    return fsum(
        [
            width * (min(stop, end) - max(start, begin))
            for width, start, stop in runs
            if stop > begin and start < end
        ]
    )


def jct_pairs(result: Result, settings: Settings) -> list[tuple[float, float] | None]:
    """Return (JCT, baseline JCT) of each job in seconds; None for jobs that are not measured."""
    pairs: list[tuple[float, float] | None] = []
    ends = zip(result.schedule.ends, result.baseline.ends, strict=True)
    for (job, _), (end, base) in zip(result.trace.arrivals, ends, strict=True):
        submit = job.submit
        if submit < settings.warmup or end is None or base is None:
            pairs.append(None)
        else:
            pairs.append((end - submit, base - submit))
    return pairs


def _measures(pairs: Iterable[tuple[float, float] | None]) -> dict[str, Any]:
    return dict(msgspec.structs.asdict(measure([pair for pair in pairs if pair is not None])))


def _share(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _median(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None
