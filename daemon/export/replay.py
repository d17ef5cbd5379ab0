"""Compare the real schedule with replays under other policies: waits, JCTs and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from replay.compare.compare import FloatArray, JobTimes, Resampling, compare_jobs, read_jobs
from replay.logs.read import read_trace
from replay.plotting.canvas import PolicyStyle, axes_in, curve, looks, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REAL = "as it was"
"""Label of the real schedule in tables, figures and JSON."""

LEAST_WAIT = 1.0
"""Shortest wait in the figure, in seconds; shorter waits count as 0."""

SPAN = (60.0, 3600.0, 86400.0, 604800.0)
TICKS = ("1 min", "1 h", "1 d", "1 w")


class MeasuredJobs(Struct, frozen=True):
    """Waits and JCTs of the measured jobs, in seconds."""

    jobs: int
    wait_mean: float
    wait_p50: float
    wait_p95: float
    jct_mean: float
    against: dict[str, Any] | None
    """The output of `sia compare REAL POLICY`; None for the real schedule."""


def waits_of(jobs: Mapping[str, JobTimes], lasts: Mapping[str, float], warmup: float) -> FloatArray:
    """Return the waits, in seconds, of jobs submitted at `warmup` or later."""
    found = (j.jct - lasts[i] for i, j in jobs.items() if j.submit >= warmup and i in lasts)
    return np.maximum(0.0, np.fromiter(found, np.float64))


def newest(out: Path) -> float:
    """Return the submission time of the last job of the exported log, in seconds of the log."""
    return max((each.job.submit for each in read_trace(out / "trace.csv").arrivals), default=-inf)


def answer(out: Path, real: Path, labels: Sequence[str], warmup: float) -> dict[str, MeasuredJobs]:
    """Return results of the real schedule and each policy since `warmup`; draw `waits.svg`.

    Only jobs in both schedules are compared. Raises UserError if there are none.
    """
    lasts = {arrival.job.id: arrival.duration for arrival in read_trace(out / "trace.csv").arrivals}
    was = read_jobs(real)
    found: dict[str, MeasuredJobs] = {REAL: _outcome(was, lasts, warmup, None)}
    waits = {REAL: waits_of(was, lasts, warmup)}
    for label in labels:
        jobs = {job_id: job for job_id, job in read_jobs(out / label).items() if job_id in was}
        against = compare_jobs(was, jobs, warmup, Resampling())
        found[label] = _outcome(jobs, lasts, warmup, against)
        waits[label] = waits_of(jobs, lasts, warmup)
    (out / "waits.svg").write_bytes(draw_waits(waits))
    return found


def _outcome(
    jobs: Mapping[str, JobTimes], lasts: Mapping[str, float], warmup: float, against: Any
) -> MeasuredJobs:
    waits = waits_of(jobs, lasts, warmup)
    jcts = [job.jct for job in jobs.values() if job.submit >= warmup]
    if not jcts:
        return MeasuredJobs(0, 0.0, 0.0, 0.0, 0.0, against)
    p50, p95 = np.quantile(waits, [0.5, 0.95])
    return MeasuredJobs(
        len(jcts), float(waits.mean()), float(p50), float(p95), float(np.mean(jcts)), against
    )


def draw_waits(waits: Mapping[str, FloatArray]) -> bytes:
    """Return an SVG figure: the cumulative distribution of waits, one curve per schedule."""
    style: dict[str, PolicyStyle] = looks(list(waits), REAL)

    def draw(figure: Figure) -> None:
        axes = axes_in(figure, left=0.075, right=0.98, bottom=0.145, top=0.9)
        most = max([SPAN[1], *(float(w.max(initial=0.0)) for w in waits.values())]) * 1.1
        axes.set_xscale("log")
        axes.set_xlim(LEAST_WAIT, most)
        axes.set_ylim(0, 102)
        for i, (name, values) in enumerate(waits.items()):
            ordered = np.sort(values)
            shares = np.arange(1, len(ordered) + 1) * (100 / max(1, len(ordered)))
            x = np.concatenate([[LEAST_WAIT], np.maximum(ordered, LEAST_WAIT), [most]])
            y = np.concatenate([[0.0], shares, [100.0]])
            curve(axes, x, y, style[name], i)
        shown = [(at, text) for at, text in zip(SPAN, TICKS, strict=True) if at <= most]
        axes.set_xticks([1.0, *(at for at, _ in shown)], ["1 s", *(text for _, text in shown)])
        axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.set_xlabel("wait (log scale)")
        axes.set_ylabel("% of jobs")
        figure.legend(axes.lines, list(waits), loc="upper center", ncols=4, frameon=False)

    return render("waits", 3.6, draw)
