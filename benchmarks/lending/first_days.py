"""What forecasts gain on days 2 and 3 of a new site, and what four weeks of history would gain.

    python -m benchmarks.lending.first_days philly.csv.gz philly_pools.csv [PIECES [LABEL,LABEL…]]

Draws the pieces of `sia experiment --queues 8 --runs 20`, and as many from made-up clouds of eight
pools, and replays the first three days of each: without the past, and with the four weeks before.
Jobs of days 2 and 3 are measured. The gain is the logarithm of the geometric mean speed-up over all
of them; under `sia-reclaim` every job may be stopped and loses its work. Of forecasts of loads it
says, for each hour of the first day, how many of those for a pool and window were enough, and what
they reserve as a share of the quota. The results of all 20 pieces are in `first_days.json`, those
of the first N in `first_days_N.json`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import ceil, fsum, log
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import keep
from benchmarks.lending.pieces import Cut
from predictors.loads.peaks import PeakLoads, Peaks
from replay.experiment.design import PieceDesign, plan_pieces
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
from replay.run.starts import starts_of
from replay.run.summary import summarize
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.limits import TICK, WINDOWS
from sia.wording import DAY, WEEK

LABELS = ("sia@peaks+survival", "sia-reclaim@peaks+survival")
LOADS = (0.6, 1.1)
PIECES = 20
POOLS = 8


def philly(trace_path: str, pools_path: str, pieces: int) -> list[Cut]:
    """Return the first three days of each piece of the log, and the four weeks before it."""
    trace, table = read_trace(Path(trace_path)), read_pools(Path(pools_path))
    return _cuts(trace, table, PieceDesign([POOLS], PIECES, 2 * WEEK, LOADS), pieces)


def made_up(pieces: int) -> list[Cut]:
    """Return three days after four weeks of as many clouds."""
    found = []
    for seed in range(pieces):
        trace, table = make_cloud(Cloud(pools=POOLS + 4, days=31.5), seed)
        design = PieceDesign([POOLS], 1, 3 * DAY, LOADS, seed, 4 * WEEK)
        found += _cuts(trace, table, design, 1)
    return found


def _cuts(trace: Trace, table: PoolTable, design: PieceDesign, pieces: int) -> list[Cut]:
    runnable = playable(trace, table)
    pairs = zip(runnable.arrivals, starts_of(runnable, table), strict=True)
    starts = {arrival.job.id: start for arrival, start in pairs if start is not None}
    found = []
    for piece in plan_pieces(trace, table, design)[:pieces]:
        whole = piece.cut(trace)
        early = [each for each in whole.arrivals if each.job.submit < 3 * DAY]
        found.append(Cut(replace(whole, arrivals=early), piece.table, piece.past(trace, starts)))
    return found


def measure(task: tuple[Cut, tuple[str, ...]]) -> dict[str, dict[str, Any]]:
    """Return by label the gain with and without the past, and the jobs later than alone."""
    cut, labels = task
    found: dict[str, dict[str, Any]] = {}
    share = PreemptibleShare(100, "restart")
    for label in ("sia", *labels):
        stops = label.startswith("sia-reclaim")
        settings = Settings((label,), warmup=DAY, preemptible=share if stops else None)
        jobs = playable(mark(cut.log, share, 0) if stops else cut.log, cut.table)
        for name, past in (("new", None), ("old", cut.past)):
            if label == "sia" and past is None:
                continue
            (result,) = replay_all(jobs, cut.table, settings, past=past)
            measures = summarize(cut.table, settings, [result])["policies"][label]
            own = found.setdefault(label, {"jobs": measures["measured"]})
            own[name] = measures["measured"] * log(measures["speedup_geomean"] or 1.0)
            own[f"{name}_later"] = measures["slowed"]
    return found


def first_day(cut: Cut) -> Any:
    """Return, of the forecasts of the first day, (hour, window, covered or reserved): shares."""
    jobs = playable(cut.log, cut.table)
    quotas = {pool.name: pool.quota for pool in cut.table.pools}
    names, owned = list(quotas), np.array(list(quotas.values()))
    loads, ticks = PeakLoads(names, WINDOWS, 0.0, quotas=quotas), [ceil(w / TICK) for w in WINDOWS]
    peaks, said = Peaks(names, max(ticks) + 1), np.zeros((len(names), len(WINDOWS)))
    events = []
    pairs = zip(jobs.arrivals, starts_of(jobs, cut.table), strict=True)
    for number, (arrival, start) in enumerate(pairs):
        events.append((arrival.job.submit, 1, number, arrival.job))
        if start is not None:
            events.append((start + arrival.duration, 0, number, arrival.job))
    events.sort(key=lambda event: event[:3])
    at, asked, found = 0, [], np.zeros((24, len(WINDOWS), 2))
    day = int(DAY / TICK)
    for tick in range(day + max(ticks) + 1):
        while at < len(events) and events[at][0] <= tick * TICK:
            time, came, _, job = events[at]
            at += 1
            if came:
                loads.submitted(time, job)
                peaks.add(job)
            else:
                loads.finished(time, job)
                peaks.remove(job)
        peaks.mark()
        for pool, window, gpus in loads.changes(tick * TICK):
            said[names.index(pool), window] = gpus
        asked.append(np.minimum(said, owned[:, None]))
        for window, length in enumerate(ticks):
            begun = tick - length
            if 0 <= begun < day:
                stated, true = asked[begun][:, window], np.minimum(peaks.since(begun), owned)
                found[begun // 12, window] += (stated >= true).mean(), (stated / owned).mean()
    return found / 12


def of_the_hours(days: list[Any]) -> dict[str, Any]:
    """Return the means over all pieces, in percent."""
    mean = 100 * sum(days) / len(days)
    return {
        f"{length:g} s": {
            "covered": mean[:, window, 0].round(1).tolist(),
            "covered_of_day": round(float(mean[:, window, 0].mean()), 1),
            "hours_short_of_95": int((mean[:, window, 0] < 95.0).sum()),
            "reserved_of_day": round(float(mean[:, window, 1].mean()), 1),
        }
        for window, length in enumerate(WINDOWS)
    }


def totals(rows: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the sums over pieces, by label."""
    unit = fsum(row["sia"]["old"] for row in rows)
    found = {}
    for label in [label for label in rows[0] if label != "sia"]:
        total = {key: fsum(row[label][key] for row in rows) for key in rows[0][label]}
        found[label] = {
            "jobs": int(total["jobs"]),
            "captured_new": round(total["new"] / unit, 3),
            "captured_with_history": round(total["old"] / unit, 3),
            "new_of_with_history": round(total["new"] / total["old"], 3),
            "captured_of_each_piece": [
                [round(row[label][name] / (row["sia"]["old"] or 1), 2) for name in ("new", "old")]
                for row in rows
            ],
            "later_new": int(total["new_later"]),
            "later_with_history": int(total["old_later"]),
            "of_each_piece": [
                round(row[label]["new"] / (row[label]["old"] or 1), 2) for row in rows
            ],
        }
    return found


def main() -> None:
    pieces = int(sys.argv[3]) if len(sys.argv) > 3 else PIECES
    labels = tuple(sys.argv[4].split(",")) if len(sys.argv) > 4 else LABELS
    draws = {"philly": philly(sys.argv[1], sys.argv[2], pieces), "made_up": made_up(pieces)}
    found: dict[str, Any] = {"pieces": pieces}
    with ProcessPoolExecutor(2) as processes:
        for name, cuts in draws.items():
            rows = list(processes.map(measure, [(cut, labels) for cut in cuts]))
            days = of_the_hours(list(processes.map(first_day, cuts)))
            found[name] = {"gains": totals(rows), "first_day": days}
            print(name, found[name], flush=True)
    keep("lending/first_days" if pieces == PIECES else f"lending/first_days_{pieces}", found)


if __name__ == "__main__":
    main()
