"""Which of Philly's jobs could be promised a deadline on an empty cluster.

python -m benchmarks.policies.promisable

All jobs of the paper's two weeks get deadlines of 1.2 to 2 run times. Nobody competes: a job is
tried at once, and then has every lease from the next cycle on. Estimates are true, and going on
costs nothing. No scheduler runs here: leases are counted as policy `chronus` counts them.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from benchmarks.common import TRACES, keep
from replay.deadlines.workloads import PHILLY_WEEKS, Mix, with_deadlines
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from sia.model import Job
from sia.policies.chronus.leases.claims import first_lease, leases_before, leases_needed

SETTINGS = [
    (lease, be, trial)
    for trial in (300.0, 0.0)
    for lease, be in ((1200.0, 300.0), (600.0, 300.0), (300.0, 300.0), (300.0, 60.0), (60.0, 60.0))
]


class Found(NamedTuple):
    """What can be said of one job."""

    tried: bool
    """Whether it ends in its trial."""
    promised: bool
    soon: bool
    """Whether it would be promised if its first lease began at the next cycle of best effort."""
    cycle: bool
    """Whether it is in time if it starts at the next cycle of best effort."""
    at_once: bool
    """Whether it is in time if it starts at once after its trial, as with `fill`."""


def found(job: Job, run_time: float, lease: float, be: float, trial: float) -> Found:
    """Look at one job on an empty cluster."""
    assert job.deadline is not None
    ready = job.submit + trial
    first, cycle = first_lease(ready, lease), ceil(ready / be) * be
    ((within, _),) = leases_before(job.steps, first * lease, lease)
    left = run_time - (first * lease - cycle)
    needed, rest = leases_needed(run_time, lease, 0.0), leases_needed(left, lease, 0.0)
    in_time = cycle + run_time <= job.deadline
    return Found(
        run_time <= trial,
        needed <= within,
        needed <= within or (in_time and (left <= 0 or rest <= within)),
        in_time,
        ready + run_time <= job.deadline,
    )


def main() -> None:
    """Count, and store the result."""
    log = read_trace(TRACES / "philly.csv.gz")
    weeks = Trace([a for a in log.arrivals if PHILLY_WEEKS[0] <= a.job.submit < PHILLY_WEEKS[1]])
    jobs = with_deadlines(weeks, Mix(100, 0, 0), (1.2, 2.0), 100.0, 1).arrivals
    rows = {}
    for lease, be, trial in SETTINGS:
        each = [found(job, run_time, lease, be, trial) for job, run_time in jobs]
        refused = [one for one in each if not one.tried and not one.promised]

        def percent(count: int) -> float:
            return round(100 * count / len(jobs), 1)

        rows[f"lease={lease:g}:be={be:g}:profile={trial:g}"] = {
            "end in their trial": percent(sum(one.tried for one in each)),
            "promised": percent(sum(one.promised and not one.tried for one in each)),
            "not promised": percent(len(refused)),
            "of these in time from the next cycle": percent(sum(one.cycle for one in refused)),
            "of these in time at once (fill)": percent(sum(one.at_once for one in refused)),
            "promised if the first lease began at the next cycle of best effort": percent(
                sum(one.soon and not one.tried for one in each)
            ),
        }
    keep("policies/promisable", {"jobs": len(jobs), "percent of all jobs": rows})


if __name__ == "__main__":
    main()
