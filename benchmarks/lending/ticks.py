"""Milliseconds that one tick of each load forecast takes, for few pools and for many.

The learned ones are timed in `arrivals.py`, as they need a model. One thread; CPU time is what a
tick takes where nobody else computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from benchmarks.common import in_turn, keep, spread
from predictors.loads.guard import GuardedLoads
from predictors.loads.peaks import PeakLoads
from predictors.loads.sliding import SlidingMaximum
from sia import Job, Pool
from sia.forecasts import Loads
from sia.limits import TICK, WINDOWS

RUNS = 3

NINE = tuple(TICK * ticks for ticks in (1, 2, 4, 8, 12, 24, 48, 96, 144))
"""Nine windows up to the paper's longest."""

CASES: dict[str, tuple[int, Sequence[float]]] = {
    "1,000 pools, 3 windows": (1000, WINDOWS),
    "8 pools, 3 windows": (8, WINDOWS),
    "8 pools, 9 windows": (8, NINE),
}

SEEN = 4032
"""Number of ticks before the measured ones: two weeks, the longest memory of any forecast."""

TIMED = 36
"""Ticks that are timed: three hours, so that each pool's turn comes three times."""

JOBS_A_TICK = 0.25
"""Of each pool, as on Philly."""

QUOTA = 64


def sliding(pools: Sequence[Pool], windows: Sequence[float]) -> Loads:
    return SlidingMaximum([pool.name for pool in pools], windows, 0.0)


def peaks(pools: Sequence[Pool], windows: Sequence[float]) -> Loads:
    return PeakLoads([pool.name for pool in pools], windows, 0.0)


def guarded(pools: Sequence[Pool], windows: Sequence[float]) -> Loads:
    return GuardedLoads(peaks(pools, windows), pools, windows, 0.0)


Make = Callable[[Sequence[Pool], Sequence[float]], Loads]
FORECASTS: dict[str, Make] = {
    "SlidingMaximum": sliding,
    "PeakLoads": peaks,
    "Guard(PeakLoads)": guarded,
}


def tick_of(make: Make, count: int, windows: Sequence[float]) -> tuple[list[float], list[float]]:
    """CPU milliseconds of each tick's answer, and of all events of a tick, after two weeks."""
    rng = Random(0)
    pools = [Pool(f"p{i}", QUOTA) for i in range(count)]
    loads = make(pools, windows)
    answers, events = [], []
    running: list[Job] = []
    for tick in range(1, SEEN + TIMED):
        now = tick * TICK
        began = time.process_time()
        for i in range(max(1, int(JOBS_A_TICK * count))):
            job = Job(f"j{tick}-{i}", rng.choice(pools).name, now - 1, rng.choice((1, 1, 2, 4, 8)))
            loads.submitted(now - 1, job)
            loads.started(now - 1, job, 3600.0)
            running.append(job)
            if len(running) > 3 * count:
                loads.finished(now - 1, running.pop(rng.randrange(len(running))))
        updated = time.process_time()
        loads.changes(now)
        if tick >= SEEN:
            answers.append(1e3 * (time.process_time() - updated))
            events.append(1e3 * (updated - began))
    return answers, events


def least_work(count: int, windows: Sequence[float]) -> float:
    """Return the CPU milliseconds of a plain loop over all pools and windows."""
    loads = {(f"p{i}", window): 0 for i in range(count) for window in range(len(windows))}
    began = time.process_time()
    for _ in range(TIMED):
        changed = [key for key, gpus in loads.items() if gpus]
    assert not changed
    return 1e3 * (time.process_time() - began) / TIMED


def measured(make: Make, count: int, windows: Sequence[float]) -> dict[str, Any]:
    """All of one forecast and case, over several runs."""
    answers: list[float] = []
    events: list[float] = []

    def median_tick() -> float:
        own, updates = tick_of(make, count, windows)
        answers.extend(own)
        events.extend(updates)
        return sorted(own)[len(own) // 2]

    own, bare = in_turn(RUNS, median_tick, lambda: least_work(count, windows))
    return {
        "tick_ms": spread(answers),
        "events_of_a_tick_ms": spread(events),
        "times_a_plain_loop": spread([a / b for a, b in zip(own, bare, strict=True)]),
    }


def main() -> None:
    keep(
        "lending/ticks",
        {
            case: {name: measured(make, *given) for name, make in FORECASTS.items()}
            for case, given in CASES.items()
        },
    )


if __name__ == "__main__":
    main()
