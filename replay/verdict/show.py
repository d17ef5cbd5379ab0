"""The comparison of the baseline, today's setting and perfect forecasts, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.plotting.numbers import hours, minutes
from sia.wording import NONE, counted, decimal, duration, percent

COLUMNS = {
    "baseline": "without sharing",
    "today": "today",
    "perfect": "with perfect forecasts",
}
"""The titles of what is compared."""


def columns_of(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared, without what was not replayed."""
    return {name: verdict["compared"][name] for name in COLUMNS if verdict["compared"][name]}


def comparison(verdict: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table."""
    shown = columns_of(verdict)
    header = ["", *(f"{COLUMNS[name]}: {entry['policy']}" for name, entry in shown.items())]
    rows = [
        ["average completion time", *(duration(e.get("avg_jct_s")) for e in shown.values())],
        ["average wait", *(duration(e.get("wait_avg_s")) for e in shown.values())],
        ["90th percentile of the wait", *(duration(e.get("wait_p90_s")) for e in shown.values())],
        ["jobs slowed", *(map(_slowed, shown.values()))],
        ["worst delay", *(map(_worst, shown.values()))],
        ["GPU-hours lent", *(map(_lent, shown.values()))],
        ["GPUs in use", *(map(_used, shown.values()))],
    ]
    return header, [row for row in rows if any(cell != NONE for cell in row[1:])]


def _slowed(entry: Mapping[str, Any]) -> str:
    if "slowed" not in entry:
        return NONE
    share = percent(entry["slowed_pct"])
    return f"{entry['slowed']:,} of {counted(entry['measured'], 'job')} ({share} %)"


def _worst(entry: Mapping[str, Any]) -> str:
    return minutes(entry["worst_delay_s"] / 60) if entry.get("slowed") else NONE


def _lent(entry: Mapping[str, Any]) -> str:
    return hours(entry["gpu_hours_lent"]) if "gpu_hours_lent" in entry else NONE


def _used(entry: Mapping[str, Any]) -> str:
    used = entry.get("utilisation_pct")
    return NONE if used is None else f"{decimal(used, 1)} %"
