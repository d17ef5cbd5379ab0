"""Progress of the oracle, as lines."""

from __future__ import annotations

from time import perf_counter

import click

from oracle.problem import Goal
from oracle.solve import Progress, gap_of
from replay.text import decimal, duration

SAID_EVERY = 5.0
"""Seconds between two lines of progress."""


class Teller:
    """Says every few seconds how far it is."""

    def __init__(self, slot: float, goal: Goal) -> None:
        """Costs are slots of waiting, unless the `goal` makes them something else."""
        self._slot, self._said = slot, 0.0
        self._plain = not (goal.beta or goal.weighted or goal.slowdown_pct)

    def __call__(self, now: Progress) -> None:
        """Say it, if the last time is long enough ago."""
        if perf_counter() < self._said + SAID_EVERY:
            return
        self._said = perf_counter()
        click.echo(
            f"best {self._shown(now.cost)}, bound {self._shown(now.bound)}, gap "
            f"{decimal(100 * gap_of(now.cost, now.bound))} %, {now.nodes:,} nodes, "
            f"{duration(now.left)} left",
            err=True,
        )

    def _shown(self, cost: float) -> str:
        return duration(cost * self._slot) if self._plain else decimal(cost)
