"""Distributions of run times on KTH's log, with and without what users stated.

Of each job but the first 2,000, which teach: how often it ended by p50 and p90, how often p50 was
within a factor of two, and the pinball loss of the logarithms, which is least for true quantiles.
"""

from __future__ import annotations

import sys
from collections import Counter
from math import log

from msgspec.structs import replace

from benchmarks.common import TRACES, keep
from predictors.run_time_distribution import RunTimeDistributions
from replay.logs.importers import swf
from sia.limits import UNLIMITED

TAUGHT = 2000


def loss(share: float, told: float, ran: float) -> float:
    """Return the pinball loss of a told quantile, in logarithms of seconds."""
    off = log(max(ran, 1.0) / max(told, 1.0))
    return max(share * off, (share - 1.0) * off)


def main() -> None:
    if not TRACES.is_dir():
        sys.exit(f"{TRACES}: no such folder; set SIA_TRACES to the folder with the real logs")
    arrivals = [a for a in swf.read(TRACES / "kth_sp2.swf.gz", None)[0].arrivals if a.job.estimate]
    events = []
    for i, (job, seconds) in enumerate(arrivals):
        assert job.estimate is not None
        ran = min(seconds, job.estimate)  # KTH ended jobs at the requested time
        events += [(job.submit, 0, i, ran), (job.submit + ran, 1, i, ran)]
    lasting, sums = RunTimeDistributions(), {"without": Counter(), "with": Counter()}
    for now, kind, i, ran in sorted(events):
        job = arrivals[i].job
        if kind:
            lasting.finished(now, job, ran)
            continue
        lasting.submitted(job)
        for name, asked in (("without", replace(job, estimate=None)), ("with", job)):
            if i >= TAUGHT:
                p50, p90 = (
                    min(lasting.curve(asked).quantile(share), job.estimate or UNLIMITED)
                    for share in (0.5, 0.9)
                )
                sums[name] += Counter(
                    n=1, by_p50=ran <= p50, by_p90=ran <= p90, within_2x=p50 / 2 <= ran <= 2 * p50
                )
                sums[name]["loss_p50"] += loss(0.5, p50, ran)
                sums[name]["loss_p90"] += loss(0.9, p90, ran)
        lasting.started(now, job)
    keep(
        "lending/stated_times",
        {
            name: {"jobs": sum_["n"]}
            | {what: round(value / sum_["n"], 4) for what, value in sum_.items() if what != "n"}
            for name, sum_ in sums.items()
        },
    )


if __name__ == "__main__":
    main()
