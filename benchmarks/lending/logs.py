"""What `sia-reclaim` gains and costs on other logs than Philly, beside Kueue's queues.

    python -m benchmarks.lending.logs [PART+PART…]

With parts of their names, such as `model of`, only these cases are replayed, and the others stay as
they are stored.

Helios Venus has one pool, which is cut by width into eight; KTH SP2 has one, too, and its users
are dealt to six. Their quotas are such that a pool's jobs make up 0.6 to 1.1 of it, drawn with seed
0. The generated cloud is that of `sia trace synth --preset cloud`. Forecasts learn from nothing,
except that the forecast `learned` is of a model of another log, Philly, and for Helios Venus also
of one of the eight weeks before. The first two days are not measured. Intervals are of a bootstrap
over the days of submission, or weeks in a log of more than two months.
`python -m benchmarks.pictures` draws them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.common import RESULTS, TRACES, keep
from benchmarks.lending.pieces import CASES, LOADS, Case, Cut, measure, row_of_log
from replay.forecast.train import train_on
from replay.logs.importers import swf
from replay.logs.read import read_pools, read_trace
from replay.logs.slice import slice_trace
from replay.logs.split import split_by_width
from replay.logs.trace import PoolTable, Trace
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.core.playout import Arrival
from sia.model import Pool
from sia.wording import DAY, WEEK

if TYPE_CHECKING:
    from predictors.learning.model import Model

VENUS = "Helios Venus by width, 2 weeks"
VENUS_SINCE = 8 * WEEK
GROUPS = 6
LONG = 60
"""Days from which on the parts of a log, over which intervals are, are weeks instead of days."""

LEARNED = ("Philly", "its own past")
"""What models are trained on."""

LEARNED_CASES: Sequence[Case] = [
    case
    for log in LEARNED
    for case in (
        (f"all restart, model of {log}", 100, "restart", "sia-reclaim@learned:0.95+survival"),
        (f"none is stopped, model of {log}", 100, "restart", "sia@learned:0.95+survival"),
    )
]


def scaled(trace: Trace, begin: float, length: float) -> Cut:
    """Return a part of a log in which each pool has a load within `LOADS`."""
    rng = Random(0)
    names = sorted({arrival.job.pool for arrival in trace.arrivals})
    loads = {name: rng.uniform(*LOADS) for name in names}
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
        VENUS: scaled(venus, VENUS_SINCE, 2 * WEEK),
        "KTH SP2 by groups of users, 13 weeks": scaled(kth, 0.0, 13 * WEEK),
        "generated cloud, 2 weeks": Cut(*make_cloud(Cloud(pools=8, days=14.0), 0), None),
    }  # fmt: skip


def models() -> dict[str, Model]:
    """Return the models of arrivals by what they were trained on; the last is for Venus alone."""
    philly = train_on(read_trace(TRACES / "philly.csv.gz"), read_pools(TRACES / "philly_pools.csv"))
    venus = split_by_width(read_trace(TRACES / "helios_venus.csv.gz"))
    return dict(zip(LEARNED, (philly, train_on(venus, None, until=VENUS_SINCE)), strict=True))


def main() -> None:
    parts = sys.argv[1].split("+") if len(sys.argv) > 1 else [""]

    def chosen(cases: Iterable[Case]) -> list[Case]:
        return [case for case in cases if any(part in case[0] for part in parts)]

    path = RESULTS / "lending" / "logs.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    trained = models() if chosen(LEARNED_CASES) else {}
    for log, cut in cuts().items():
        days = (cut.log.arrivals[-1].job.submit - cut.log.arrivals[0].job.submit) / DAY
        part = DAY if days < LONG else WEEK
        rows = measure(cut, chosen(CASES), part)
        for name, model in trained.items():
            if name == LEARNED[0] or log == VENUS:
                cases = [case for case in chosen(LEARNED_CASES) if case[0].endswith(name)]
                rows |= measure(cut, cases, part, model)
        measured = {case: row_of_log(row) for case, row in rows.items()}
        found[log] = found.get(log, {}) | measured
        print(log, measured, flush=True)
        keep("lending/logs", found, quiet=True)


if __name__ == "__main__":
    main()
