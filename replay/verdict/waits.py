"""The waits of jobs without and with sharing, by pool and by width."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from operator import attrgetter
from typing import Any

from replay.run.metrics import quantile
from replay.run.run import Settings
from replay.run.schedule import Result, Schedule
from sia.model import Job

Waited = tuple[Job, float]
"""A measured job, and its wait until its first start in seconds."""


def waited(result: Result, settings: Settings, schedule: Schedule) -> list[Waited]:
    """Return the wait of each measured job of a result, under its policy or its baseline."""
    return [
        (job, start - job.submit)
        for (job, _), start, end, base in zip(
            result.trace.arrivals,
            schedule.starts,
            result.schedule.ends,
            result.baseline.ends,
            strict=True,
        )
        if start is not None and end is not None and base is not None
        and job.submit >= settings.warmup and end > job.submit
    ]  # fmt: skip


def summed(waits: Iterable[float]) -> dict[str, Any]:
    """Return the number of waits, their mean and 90th percentile, in seconds."""
    waits = sorted(waits)
    return {
        "jobs": len(waits),
        "mean_s": fsum(waits) / len(waits) if waits else None,
        "p90_s": quantile(waits, 0.9),
    }


def width_class(job: Job) -> int:
    """Return the largest width of a job's class: 1, 2, 4, 8 and so on."""
    return 1 << (job.width - 1).bit_length()


def class_name(widest: int) -> str:
    """Return the widths of a class, like `5–8`."""
    least = widest // 2 + 1
    return str(widest) if least >= widest else f"{least}–{widest}"


def grouped(
    columns: Mapping[str, Sequence[Waited]], key: Callable[[Job], Any], groups: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return the waits of each group of jobs in each column; groups without a job are left out."""
    split: dict[str, dict[Any, list[float]]] = {}
    for name, jobs in columns.items():
        found = split[name] = defaultdict(list)
        for job, wait in jobs:
            found[key(job)].append(wait)
    return [
        {"group": group, **{name: summed(found.get(group, [])) for name, found in split.items()}}
        for group in groups
        if any(group in found for found in split.values())
    ]


def waits_of(columns: Mapping[str, Sequence[Waited]], pools: Sequence[str]) -> dict[str, Any]:
    """Return the waits of all jobs, by pool and by width, in each column."""
    widths = sorted({width_class(job) for jobs in columns.values() for job, _ in jobs})
    by_width = grouped(columns, width_class, widths)
    for row in by_width:
        row["group"] = class_name(row["group"])
    return {
        "all": {name: summed(wait for _, wait in jobs) for name, jobs in columns.items()},
        "pools": grouped(columns, attrgetter("pool"), pools),
        "widths": by_width,
    }
