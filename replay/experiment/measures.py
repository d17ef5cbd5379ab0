"""The measures of an experiment's runs, for figures, tables and sentences."""

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
from replay.verdict.kinds import in_order
from sia.limits import RECALL
from sia.model import Options
from sia.wording import NONE, decimal, percent

RunRow = Mapping[str, Any]
"""The contents of a run.json."""

RunRows = Sequence[RunRow]


class Measure(NamedTuple):
    """A measure of a run: its key in run.json, its title, and its unit (a key of `UNITS`)."""

    key: str
    words: str
    unit: str


LENGTHS = ((31_536_000.0, "y"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
"""Units of slowdowns in seconds; `brief` uses the largest unit of which there are at least two."""


def brief(value: float) -> str:
    """Format minutes in one unit, like `6.1 h`. Only exactly 0 is shown as 0."""
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
"""Functions that format a number of each unit."""

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
    """The runs of an experiment and their common properties."""

    def __init__(self, runs: RunRows, settings: Mapping[str, Any]) -> None:
        """Take at least one run."""
        self.runs = sorted(runs, key=lambda run: int(run["run"]))
        self.settings = settings
        found = dict.fromkeys(name for run in runs for name in run["policies"])
        self.policies = in_order(self.settings_of_replay, found)
        self.rivals = [name for name in self.policies if name != BASELINE]
        self.looks: dict[str, PolicyStyle] = looks(self.policies, BASELINE)
        self.sizes = sorted({float(run["size"]) for run in runs})
        self.withdrawn = [run for run in self.runs if run["withdrawn"]]

    @property
    def in_cells(self) -> bool:
        """Whether jobs needed GPUs of one cell."""
        return self.settings.get("cells_sha256") is not None

    @property
    def whole(self) -> bool:
        """Whether the runs replay the whole log at several sizes, not random pieces."""
        return bool(self.settings.get("sizes") or self.withdrawn or len(self.sizes) > 1)

    @cached_property
    def by_queues(self) -> dict[str, RunRows]:
        """The runs by number of queues."""
        numbers = sorted({run["queues"] for run in self.runs})
        return {queues(n): [r for r in self.runs if r["queues"] == n] for n in numbers}

    def at_size(self, size: float, *, withdrawn: bool) -> RunRows:
        """Return the runs of the whole log at a size, with or without withdrawn pools."""
        same = [run for run in self.runs if run["size"] == size]
        return [run for run in same if bool(run["withdrawn"]) == withdrawn]

    def sharing(self) -> list[str]:
        """Return the policies that share GPUs."""
        return [
            name
            for name in self.policies
            if shares(name, lent=any(e["gpu_hours_lent"] for e in entries(self.runs, name)))
        ]

    @cached_property
    def settings_of_replay(self) -> Settings:
        """The default predictors and preemption options of the policies."""
        keys = {"forecast", "durations", "load_quantile", "run_time_quantile", "max_slowed_pct"}
        known = {key: self.settings[key] for key in keys & self.settings.keys()}
        if "recent_windows" in self.settings:
            known["recent"] = self.settings["recent_windows"]
        if self.settings.get("preemptible") is not None:
            known["preemptible"] = PreemptibleShare(*self.settings["preemptible"])
        given = {"windows": "windows_s", "slack": "slack", "resume_cost": "resume_cost_s"}
        asked = {key: self.settings[name] for key, name in given.items() if name in self.settings}
        if "windows" in asked:
            asked["windows"] = tuple(asked["windows"])
        options = Options(**asked)
        params = {"sia-recall": {"recall": self.settings.get("recall", RECALL)}}
        return Settings([], options=options, params=params, **known)

    def choice(self, label: str) -> Choice | None:
        """Parse a label; None if the policy or predictor is not installed here."""
        try:
            return self.settings_of_replay.choice(label)
        except KeyError:
            return None

    def foresees(self, label: str) -> bool:
        """Return whether a policy knew the future."""
        if self.choice(label) is None:
            return "perfect" in label
        return bool(known_in_advance(self.settings_of_replay, label))


def entries(runs: RunRows, policy: str) -> list[Mapping[str, Any]]:
    """Return a policy's measures in each run that has the policy and a measured job."""
    found = [run["policies"][policy] for run in runs if policy in run["policies"]]
    return [entry for entry in found if entry["measured"]]


def values(runs: RunRows, policy: str, key: str) -> FloatArray:
    """Return a measure over runs, without the runs that do not have it."""
    found = [entry[key] for entry in entries(runs, policy)]
    return np.array([value for value in found if value is not None], dtype=np.float64)


def at(runs: RunRows, policy: str, key: str, share: float = 0.5) -> float | None:
    """Return a quantile (default: median) of a measure over runs; None if there are no runs."""
    return quantile(values(runs, policy, key), share)


def quantile(found: FloatArray, share: float) -> float | None:
    """Return a quantile of values with linear interpolation; None if there are no values."""
    return float(np.quantile(found, share)) if len(found) else None


def shown(value: float | None, unit: str) -> str:
    """Format a number with its unit."""
    return NONE if value is None else UNITS[unit](value)


def spread(runs: RunRows, policy: str, measure: Measure, tail: float = 0.25) -> str:
    """Format the range of the runs without `tail` at each end, like `3.2–8.1x`.

    Return "" if both ends are equal.
    """
    low, high = (shown(at(runs, policy, measure.key, x), measure.unit) for x in (tail, 1 - tail))
    unit = low.lstrip("0123456789.,e-")
    if high.endswith(unit):
        return "" if low == high else f"{low.removesuffix(unit)}–{high}"
    return f"{low} – {high}"


def queues(number: int) -> str:
    """Format a number of queues: `1 queue` or `4 queues`."""
    return counted(number, "queue")


def counted(number: int, what: str) -> str:
    """Format a number with a noun: `1 run` or `4,000 runs`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
