"""What `sia-reclaim` gains and costs on other logs than Philly, beside Kueue's queues.

    python -m benchmarks.lending.logs

Helios Venus has one pool, which is cut by width into eight; KTH SP2 has one, too, and its users
are dealt to six. Their quotas are such that a pool's jobs make up 0.6 to 1.1 of it, drawn with seed
0. The generated cloud is that of `sia trace synth --preset cloud`. Forecasts learn from nothing;
the first two days are not measured.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from benchmarks.common import TRACES, keep
from benchmarks.lending.pieces import Cut, measure, row_of
from replay.logs.importers import swf
from replay.logs.read import read_pools, read_trace
from replay.logs.slice import slice_trace
from replay.logs.split import split_by_width
from replay.logs.trace import PoolTable, Trace
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.core.playout import Arrival
from sia.model import Pool
from sia.wording import WEEK

LOAD = (0.6, 1.1)
GROUPS = 6


def scaled(trace: Trace, begin: float, length: float) -> Cut:
    """Return a part of a log in which each pool has a load within `LOAD`."""
    rng = Random(0)
    names = sorted({arrival.job.pool for arrival in trace.arrivals})
    loads = {name: rng.uniform(*LOAD) for name in names}
    table = PoolTable([Pool(name, 1) for name in names])
    end = begin + length
    return Cut(*slice_trace(trace, table, begin=begin, end=end, pools=names, loads=loads), None)


def by_users(trace: Trace) -> Trace:
    """Return the trace with its users' jobs in `GROUPS` pools, dealt in order of arrival."""
    group: dict[str, str] = {}
    arrivals = []
    for job, seconds in trace.arrivals:
        pool = group.setdefault(job.user, f"g{len(group) % GROUPS}")
        arrivals.append(Arrival(msgspec.structs.replace(job, pool=pool), seconds))
    return replace(trace, arrivals=arrivals)


def cuts() -> dict[str, Cut]:
    """Return the parts of the logs, by what they are called in the results."""
    venus = split_by_width(read_trace(TRACES / "helios_venus.csv.gz"))
    two = read_trace(TRACES / "helios_venus_2vc.csv.gz")
    own = read_pools(TRACES / "helios_venus_2vc_pools.csv")
    kth = by_users(swf.read(TRACES / "kth_sp2.swf.gz", None)[0])
    return {
        "Helios, 2 virtual clusters": Cut(two, own, None),
        "Helios Venus by width, 2 weeks": scaled(venus, 8 * WEEK, 2 * WEEK),
        "KTH SP2 by groups of users, 13 weeks": scaled(kth, 0.0, 13 * WEEK),
        "generated cloud, 2 weeks": Cut(*make_cloud(Cloud(pools=8, days=14.0), 0), None),
    }  # fmt: skip


def main() -> None:
    found: dict[str, Any] = {}
    for log, cut in cuts().items():
        found[log] = {case: row_of([row]) for case, row in measure(cut).items()}
        keep("lending/logs", found)


if __name__ == "__main__":
    main()
