"""JVuPredict and survival: jobs predicted and learned per second on one core, and accuracy."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.common import TRACES, in_turn, keep, spread
from predictors.run_times.jvupredict import JVuPredict
from predictors.run_times.survival import SurvivalRunTimes
from replay.forecast.run_times import (
    LastOfUser,
    ended_as,
    evaluate_run_times,
    last_quarter,
    starts_of,
    submissions,
)
from replay.logs.importers import google, swf
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from sia.forecasts import RunTimes
from sia.limits import WINDOWS
from sia.model import Job

RUNS = 3


class Nothing(RunTimes):
    """A predictor that does nothing, to measure the cost of the calls alone."""

    def run_time(self, job: Job) -> float:
        """A second."""
        return 1.0


def seconds(trace: Trace, starts: list[float], predictor: RunTimes) -> float:
    """Return the CPU seconds to predict each job and learn from it, in the order of the log."""
    began = time.process_time()
    for job, _ in submissions(trace, [predictor], starts):
        predictor.run_time(job)
    return time.process_time() - began


def speed(trace: Trace) -> dict[str, Any]:
    """Return jobs per second without the cost of events, and multiples of the baseline's time."""
    starts, n = starts_of(trace), len(trace.arrivals)
    makers = {
        "last-of-user": LastOfUser,
        "jvupredict": JVuPredict,
        "jvupredict, p90": lambda: JVuPredict(quantile=0.9),
        "jvupredict, nrmse": lambda: JVuPredict(choice="nrmse"),
        "survival": lambda: SurvivalRunTimes(WINDOWS),
    }
    calls = [lambda m=make: seconds(trace, starts, m()) for make in (Nothing, *makers.values())]
    bare, *columns = in_turn(RUNS, *calls)
    return {
        name: {
            "jobs_per_s": spread([n / (a - b) for a, b in zip(column, bare, strict=True)]),
            "times_the_floor": spread([a / b for a, b in zip(column, columns[0], strict=True)]),
        }
        for name, column in zip(makers, columns, strict=True)
    }


def accuracy(trace: Trace, since: float, judged: Sequence[bool] | None = None) -> dict[str, Any]:
    """Return the shares within factors of two and ten, and the coverage of the stated quantiles."""
    predictors = {
        "jvupredict": JVuPredict(),
        "jvupredict-nrmse": JVuPredict(choice="nrmse"),
        "last-of-user": LastOfUser(),
        "survival": SurvivalRunTimes(WINDOWS),
    }
    scores = evaluate_run_times(trace, predictors, since=since, windows=WINDOWS, judged=judged)
    return {
        name: {
            "n": found.n,
            "within_2x": round(found.within_2x, 4),
            "within_10x": round(found.within_10x, 4),
            "covered": {str(level): round(share, 4) for level, share in found.reliability.items()},
        }
        for name, found in scores.items()
    }


def main() -> None:
    if not TRACES.is_dir():
        sys.exit(f"{TRACES}: no such folder; set SIA_TRACES to the folder with the real logs")
    month = google.read(TRACES / "google2011_jobs.csv.gz", None)[0]
    finished = ended_as(month, "FINISH")
    jobs = [arrival for arrival, kept in zip(month.arrivals, finished, strict=True) if kept]
    source = f"Google 2011, {len(jobs)} jobs that finished"
    keep("lending/run_times", {"input": source, **speed(Trace(jobs, month.columns, month.extras))})
    logs = {
        "kth_sp2": swf.read(TRACES / "kth_sp2.swf.gz", None)[0],
        **{
            name: read_trace(TRACES / f"{name}.csv.gz")
            for name in ("helios_venus_users", "helios_venus", "philly")
        },
    }
    judged = {"google2011, FINISH": (month, finished)} | {n: (log, None) for n, log in logs.items()}
    whole = {name: accuracy(log, 0.0, kept) for name, (log, kept) in judged.items()}
    last = {name: accuracy(log, last_quarter(log), kept) for name, (log, kept) in judged.items()}
    keep("lending/run_times_accuracy", {"whole log": whole, "last quarter": last})


if __name__ == "__main__":
    main()
