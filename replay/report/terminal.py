"""Terminal output: tables of measures, and progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import click

from replay.logs.limits import ROWS_SHOWN
from replay.report.aims import aim_tables
from replay.run.run import ReplayProgress as ProgressCallback
from replay.run.run import Settings, known_in_advance
from replay.verdict.show import comparison
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.policies import load
from sia.wording import counted, decimal, duration, percent

PRINT_EVERY = 10.0
"""Seconds between two lines of progress without a terminal."""

WITHOUT = {"arrivals": "--forecast peaks", "run times": "--durations survival"}
"""Options that replace knowledge of the future by forecasts."""


def show_verdict(verdict: Mapping[str, Any]) -> None:
    """Print the verdict: the answer, then its evidence."""
    answer, *reasons = verdict["words"]
    click.echo(f"VERDICT  {printable(answer)}")
    for words in reasons:
        click.echo(f"  {printable(words)}")
    if verdict["compared"]["today"] or verdict["compared"]["perfect"]:
        header, rows = comparison(verdict)
        show_table("Without sharing, today, and with perfect forecasts", header, rows)
    click.echo()


def show_policies(policies: Mapping[str, Any]) -> None:
    """Print a row per policy: speed-ups, slowed jobs, and GPU-hours lent."""
    header = [
        "policy", "mean", "geo", "p5", "p50", "p90", "p95",
        "avg JCT", "% slowed", "slowed by", "at most", "% used", "GPU-h lent",
    ]  # fmt: skip
    rows = []
    for name, m in policies.items():
        speedups = (m[f"speedup_{k}"] for k in ("mean", "geomean", "p5", "p50", "p90", "p95"))
        rows.append([
            name,
            *(decimal(speedup) for speedup in speedups),
            duration(m["avg_jct_s"]),
            percent(m["slowed_pct"]),
            duration(m["slowdown_total_min"] * 60),
            duration(m["slowdown_max_min"] * 60),
            decimal(m["utilisation_pct"], 1),
            decimal(m["gpu_hours_lent"], 0),
        ])  # fmt: skip
    show_table("Speed-up per job against FCFS in each pool alone", header, rows)


def show_aims(policies: Mapping[str, Any]) -> None:
    """Print how deadlines were met and ends predicted, if the log or the policies have any."""
    for table in aim_tables(policies):
        show_table(table.title, table.header, table.rows)


def show_pools(policies: Mapping[str, Any]) -> None:
    """Print a row per pool: the geometric mean of its speed-ups under each policy (Table 12).

    The speed-ups are of measured jobs, the other columns of all; both are counted if they differ.
    """
    first = next(iter(policies.values()))["pools"]
    shown = sorted(first, key=lambda name: (-first[name]["jobs"], name))[:ROWS_SHOWN]
    partly = any(pool["measured"] != pool["jobs"] for pool in first.values())
    counts = ("jobs", "measured") if partly else ("jobs",)
    header = ["pool", "GPUs", *counts, "width p50", "run p50", "% load", *policies]
    rows = []
    for name in sorted(shown):
        pool = first[name]
        speedups = (decimal(p["pools"][name]["speedup_geomean"]) for p in policies.values())
        rows.append([
            name,
            f"{pool['quota']:,}",
            *(f"{pool[key]:,}" for key in counts),
            decimal(pool["median_width"], 0),
            duration(pool["median_duration_s"]),
            decimal(pool["load_pct"], 0),
            *speedups,
        ])  # fmt: skip
    cut = f" ({ROWS_SHOWN} of {len(first)} pools)" if len(first) > ROWS_SHOWN else ""
    show_table(f"Geometric mean speed-up by pool{cut}", header, rows)


def show_foresight(settings: Settings) -> None:
    """Print which policies know the future, and the options that replace this by forecasts.

    No options are suggested for policies that need the whole future, and for policies that are
    also replayed with forecasts.
    """
    policies = {label: settings.choice(label).policy for label in settings.policies}
    known = {label: known_in_advance(settings, label) for label in policies}
    without_future = {policies[label] for label in policies if not known[label]}
    known_to: dict[str, list[str]] = {}
    for label, what in known.items():
        if what:
            known_to.setdefault(" and ".join(what), []).append(label)
    if not known_to:
        return
    who = "; ".join(f"{what} to {', '.join(labels)}" for what, labels in known_to.items())
    lacking = [
        label
        for label, policy in policies.items()
        if known[label] and policy not in without_future and not load(policy).needs.future
    ]
    fixes = [fix for what, fix in WITHOUT.items() if any(what in known[x] for x in lacking)]
    some = f" for {', '.join(lacking)}" if len(lacking) < sum(map(len, known_to.values())) else ""
    fix = f"; compare with {' '.join(fixes)}{some}" if fixes else ""
    click.echo(f"note: known in advance, unlike in a live system: {who}{fix}")


class _ReplayLines:
    """Progress without a terminal: a line for each replayed policy, and others in long replays."""

    def __init__(self) -> None:
        self._began = self._printed = monotonic()

    def __call__(self, policy: str, done: int, jobs: int) -> None:
        now = monotonic()
        if done == jobs:
            click.echo(f"{policy}: {counted(jobs, 'job')} replayed", err=True)
            self._began = now
        elif now - self._printed >= PRINT_EVERY:
            took = duration(now - self._began)
            line = f"{policy}: {done:,} of {counted(jobs, 'job')} have ended, after {took}"
            click.echo(line, err=True)
        else:
            return
        self._printed = now


@contextmanager
def progress_bars(fallback: ProgressCallback | None = None) -> Iterator[ProgressCallback]:
    """Yield a progress callback: bars on a terminal, else `fallback`, by default lines of text."""
    if not sys.stderr.isatty():
        yield fallback or _ReplayLines()
        return
    from rich.console import Console  # noqa: PLC0415  import takes a tenth of a small replay
    from rich.markup import escape  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),  # it moves on also while a policy waits for its solver
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, Any] = {}

        def update(policy: str, done: int, jobs: int) -> None:
            if policy not in tasks:
                tasks[policy] = progress.add_task(escape(policy), total=jobs)
            progress.update(tasks[policy], completed=done)

        yield update
