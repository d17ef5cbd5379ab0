"""The measures of an experiment's runs: what its pictures, tables and sentences ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from predictors.catalog import Choice
from replay.logs.preemptible import PreemptibleShare
from replay.plotting.canvas import FloatArray, PolicyStyle, looks
from replay.plotting.numbers import hours, speed
from replay.run.arrays import shares
from replay.run.run import BASELINE, Settings, known_in_advance
from sia.limits import RECALL
from sia.model import Options
from sia.wording import NONE, decimal, percent

RunRow = Mapping[str, Any]
"""The contents of a run.json."""

RunRows = Sequence[RunRow]


class Measure(NamedTuple):
    """One of a run's numbers: its key, its name, its unit (a key of `UNITS`)."""

    key: str
    words: str
    unit: str


LENGTHS = ((31_536_000.0, "y"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
"""Seconds of the units that a slowdown is told in: the largest of which there are two."""


def brief(value: float) -> str:
    """Minutes in one unit with two digits or more, like `6.1 h`; not zero never shows as zero."""
    size, unit = next((one for one in LENGTHS if value * 60 >= 2 * one[0]), LENGTHS[-1])
    amount = value * 60 / size
    digits = ",.0f" if amount >= 9.95 or not amount else ".1f" if amount >= 0.95 else ".1g"
    return f"{amount:{digits}} {unit}"


UNITS: Mapping[str, Callable[[float], str]] = {
    "speed": speed,
    "percent": lambda value: f"{percent(value)} %",
    "minutes": brief,
    "share": lambda value: f"{decimal(value, 1)} %",
    "hours": hours,
}
"""How people read a number of each unit."""

MEAN = Measure("speedup_mean", "Mean speed-up", "speed")
GEOMEAN = Measure("speedup_geomean", "Geometric mean speed-up", "speed")
P5 = Measure("speedup_p5", "Speed-up, p5", "speed")
P90 = Measure("speedup_p90", "Speed-up, p90", "speed")
P95 = Measure("speedup_p95", "Speed-up, p95", "speed")
SLOWED = Measure("slowed_pct", "Jobs slowed", "percent")
TOTAL = Measure("slowdown_total_min", "Slowdown of all jobs together", "minutes")
LARGEST = Measure("slowdown_max_min", "Slowdown of the worst job", "minutes")
USED = Measure("utilisation_pct", "GPUs in use", "share")
LENT = Measure("gpu_hours_lent", "GPU-hours lent", "hours")


class Experiment:
    """An experiment's runs, and what is asked of them again and again."""

    def __init__(self, runs: RunRows, settings: Mapping[str, Any]) -> None:
        """Take one run or more, of the same policies."""
        self.runs = sorted(runs, key=lambda run: int(run["run"]))
        self.settings = settings
        self.policies = list(dict.fromkeys(name for run in runs for name in run["policies"]))
        self.rivals = [name for name in self.policies if name != BASELINE]
        self.looks: dict[str, PolicyStyle] = looks(self.policies, BASELINE)
        self.sizes = sorted({float(run["size"]) for run in runs})
        self.withdrawn = [run for run in self.runs if run["withdrawn"]]

    @property
    def in_cells(self) -> bool:
        """Whether jobs needed GPUs that lie together."""
        return self.settings.get("cells_sha256") is not None

    @property
    def whole(self) -> bool:
        """Whether the runs are one log at some sizes, and no pieces drawn from it."""
        return bool(self.settings.get("sizes") or self.withdrawn or len(self.sizes) > 1)

    @cached_property
    def by_queues(self) -> dict[str, RunRows]:
        """The runs of each number of queues."""
        numbers = sorted({run["queues"] for run in self.runs})
        return {queues(n): [r for r in self.runs if r["queues"] == n] for n in numbers}

    def at_size(self, size: float, *, withdrawn: bool) -> RunRows:
        """The runs of the whole log at a size, with or without pools that keep to themselves."""
        same = [run for run in self.runs if run["size"] == size]
        return [run for run in same if bool(run["withdrawn"]) == withdrawn]

    def sharing(self) -> list[str]:
        """The policies that share GPUs."""
        return [
            name
            for name in self.policies
            if shares(name, lent=any(e["gpu_hours_lent"] for e in entries(self.runs, name)))
        ]

    @cached_property
    def asked(self) -> Settings:
        """By what its policies foresee, as far as their labels do not say, and stop jobs."""
        keys = {"forecast", "durations", "load_quantile", "run_time_quantile", "max_slowed_pct"}
        known = {key: self.settings[key] for key in keys & self.settings.keys()}
        if "recent_windows" in self.settings:
            known["recent"] = self.settings["recent_windows"]
        if self.settings.get("preemptible") is not None:
            known["preemptible"] = PreemptibleShare(*self.settings["preemptible"])
        options = Options(
            resume_cost=self.settings.get("resume_cost_s", 0.0),
            recall=self.settings.get("recall", RECALL),
        )
        return Settings([], options=options, **known)

    def choice(self, label: str) -> Choice | None:
        """What a label stands for; None for one from elsewhere."""
        try:
            return self.asked.choice(label)
        except KeyError:
            return None

    def foresees(self, label: str) -> bool:
        """Whether a policy was told what no live system knows."""
        if self.choice(label) is None:
            return "perfect" in label
        return bool(known_in_advance(self.asked, label))


def entries(runs: RunRows, policy: str) -> list[Mapping[str, Any]]:
    """What a policy gave, in each run that has it and in which a job was measured."""
    found = [run["policies"][policy] for run in runs if policy in run["policies"]]
    return [entry for entry in found if entry["measured"]]


def values(runs: RunRows, policy: str, key: str) -> FloatArray:
    """A measure over runs; those that do not have it are left out."""
    found = [entry[key] for entry in entries(runs, policy)]
    return np.array([value for value in found if value is not None], dtype=np.float64)


def at(runs: RunRows, policy: str, key: str, share: float = 0.5) -> float | None:
    """A quantile of a measure over runs: without `share` the median; None of no runs."""
    return quantile(values(runs, policy, key), share)


def quantile(found: FloatArray, share: float) -> float | None:
    """A quantile of values, between the two nearest if it falls between; None of none."""
    return float(np.quantile(found, share)) if len(found) else None


def shown(value: float | None, unit: str) -> str:
    """A number as people read it."""
    return NONE if value is None else UNITS[unit](value)


def spread(runs: RunRows, policy: str, measure: Measure, tail: float = 0.25) -> str:
    """What runs lie between without the `tail` at each end, like `3.2–8.1x`; "" of one value."""
    low, high = (shown(at(runs, policy, measure.key, x), measure.unit) for x in (tail, 1 - tail))
    unit = low.lstrip("0123456789.,e-")
    if high.endswith(unit):
        return "" if low == high else f"{low.removesuffix(unit)}–{high}"
    return f"{low} – {high}"


def queues(number: int) -> str:
    """`1 queue` or `4 queues`."""
    return counted(number, "queue")


def counted(number: int, what: str) -> str:
    """`1 run` or `4,000 runs`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
