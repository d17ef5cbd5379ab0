"""Days of PCS's workload 1 in the daemon's engine: the front is updated, a point is set at noon.

`python -m benchmarks.policies.pcs.live` plays the engine in virtual time, as a daemon with
estimates does. It begins under FIFO. After three and a half days settings are searched on the jobs
that have ended, as `sia wfq update` does, and the balanced point is set. The estimates that jobs
were given at their submission are compared with what happened. The same days under FIFO alone are
for comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from benchmarks.common import keep
from benchmarks.policies.pcs.figures import points_of, searched, workload
from daemon.answers.estimates.calibration import Given
from daemon.answers.estimates.estimator import EtaService
from daemon.answers.estimates.worlds import outlook
from daemon.answers.simulate.forward import EnginePlayout
from daemon.answers.simulate.futures import of_attempt
from daemon.engine.engine import Engine, Step
from daemon.model.book import JobRecord
from daemon.model.inputs import Input, SetPolicy, Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from replay.run.metrics import quantile
from replay.search.workload import LogSource
from sia.core.playout import Arrival
from sia.model import Options, Pool
from sia.wording import DAY

FIFO = "wfq:weights=1:zeta=0"
POOL, GPUS = "workload-1", 64
SHORTER = 24.0
"""By how much jobs are shorter than those of workload 1, so that most of them end within a day."""
SEEDS, DAYS, BEGIN, NOON, END = 5, 5.0, 2.5, 3.5, 4.5
"""Days of arrivals; estimates are measured of jobs that come from BEGIN on, until END."""
EVERY = 3600.0
"""Seconds between two playouts, of which a daemon makes more."""
OBJECTIVES, SIMULATIONS = ("avg:jct", "avg:pred_err"), 80


class Live(EnginePlayout):
    """The engine in virtual time, and the estimators that hear of its notices."""

    def __init__(self, durations: dict[str, float]) -> None:
        """Start without jobs, under FIFO."""
        self.over: list[JobRecord] = []
        self.world = Engine.new(Setup((Pool(POOL, GPUS),), policy=FIFO, options=Options()))
        super().__init__(
            self.world, 0.0, lambda record: of_attempt(record, 0.0, durations[record.spec.id])
        )
        service = SimpleNamespace(
            clock=SimpleNamespace(now=lambda: self.now, seconds_until=lambda _: 30.0),
            engine=self.world, book=self.world.book,
        )  # fmt: skip
        self.eta = EtaService(service)  # type: ignore[arg-type]
        self.eta.ready = True
        self.looked = 0.0

    def _apply(self, inputs: Sequence[Input]) -> Step:
        step = super()._apply(inputs)
        for notice in step.notices:
            self.eta.heard.hear(notice, self.world.book.job(notice.job))
        self.over += step.over
        return step

    def until(self, moment: float) -> None:
        """Play until then, with playouts for estimates."""
        while self.now < moment:
            then = min(moment, self.looked + EVERY)
            for _ in self.instants(then):
                pass
            self.now = then
            if then == self.looked + EVERY:
                self.look()

    def look(self) -> None:
        """Play the present forward in worlds, as the daemon does in a child."""
        self.looked, heard = self.now, self.eta.heard
        heard.lasting.advance(self.now)
        if self.now >= (BEGIN - 0.5) * DAY and heard.lasting.knows():
            asyncio.run(self.eta.looked(outlook(self.world, heard.lasting, heard.lately, self.now)))


def lived(arrivals: Sequence[Arrival], *, tuned: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return the point that was set, and of each measured job what it was told and what came."""
    live = Live({job.id: duration for job, duration in arrivals})
    told: dict[str, Given] = {}
    label = ""
    for job, duration in arrivals:
        if tuned and not label and job.submit >= NOON * DAY:
            live.until(NOON * DAY)
            label = balanced(live, arrivals)
            live.apply([SetPolicy(label)])
            live.look()
        live.until(job.submit)
        live.apply(
            [
                Submit(
                    JobSpec(
                        job.id, POOL, job.width, min_width=job.min_width, max_width=job.max_width
                    ),
                    duration,
                )
            ]
        )
        given = live.eta.at_submission(job.id)
        if given is not None and BEGIN * DAY <= job.submit < END * DAY:
            told[job.id] = given
    live.until(arrivals[-1].job.submit + 3 * DAY)
    return label, [
        {"submit": r.submitted, "start": r.decided, "end": r.ended, "told": told[r.spec.id]}
        for r in live.over
        if r.spec.id in told
    ]


def balanced(live: Live, arrivals: Sequence[Arrival]) -> str:
    """Update the front on the jobs that have ended, and return its balanced point."""
    ended = {record.spec.id for record in live.over}
    history = [each for each in arrivals if each.job.id in ended]
    found = searched(LogSource(history, GPUS, 0), OBJECTIVES, SIMULATIONS)
    return points_of(found, OBJECTIVES)["wfq, balanced"]


def measured(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return coverage and errors of jobs that ended by noon, came before it, and came after it."""
    noon = NOON * DAY
    parts: dict[str, list[dict[str, Any]]] = {
        "ended by noon": [],
        "over noon": [],
        "after noon": [],
    }
    for row in rows:
        before = row["submit"] < noon
        part = (
            "after noon" if not before else ("ended by noon" if row["end"] < noon else "over noon")
        )
        parts[part].append(row)
    return {name: _measures(part) for name, part in parts.items() if part}


def _measures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors = sorted(
        100 * abs(row["end"] - row["told"].end.p50) / (row["told"].end.p50 - row["submit"])
        for row in rows
        if row["told"].end.p50 is not None
    )
    ends = [(row["told"].end, row["end"]) for row in rows]

    def covered(which: str) -> float:
        hits = [(at := getattr(said, which)) is None or end <= at for said, end in ends]
        return round(100 * fmean(hits), 1)

    return {
        "jobs": len(rows),
        "mean_jct_s": round(fmean(row["end"] - row["submit"] for row in rows)),
        "ends by p50 (%)": covered("p50"),
        "ends by p90 (%)": covered("p90"),
        "Pred_err (%), p50, p90": [round(quantile(errors, q) or 0.0, 1) for q in (0.5, 0.9)],
    }


def main() -> None:
    days: dict[str, list[dict[str, Any]]] = {"set at noon": [], "FIFO all the time": []}
    labels, count = list[str](), 0
    for seed in range(SEEDS):
        arrivals = [
            Arrival(job.submitted_at(job.submit / SHORTER), duration / SHORTER)
            for job, duration in workload("workload-1").sample("test", seed, 2000, 1).arrivals
            if job.submit / SHORTER < DAYS * DAY
        ]
        count += len(arrivals)
        for name, rows in days.items():
            label, found = lived(arrivals, tuned=name == "set at noon")
            labels += [label] if label else []
            rows.extend(found)
    measures = {name: measured(rows) for name, rows in days.items()}
    keep("policies/pcs_live", {"seeds": SEEDS, "jobs": count, "set": labels, "days": measures})


if __name__ == "__main__":
    main()
