"""Rows that whole jobs keep and parts of jobs do not.

The LP has a job of eight GPUs start in eighths, as if each were a job of its own. But where 31 GPUs
are left for such jobs, three run, not 3.9. So for each slot, divide its row of capacity by a width,
count some of the narrower jobs as running, and round (mixed-integer rounding): with 32 GPUs, of the
jobs of eight and any narrower one no more than four run at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, inf
from typing import NamedTuple

from oracle.forms import CONSTANT, Model
from oracle.milp import Row

VIOLATED = 1e-3
"""By how much a row must be broken to be worth having: below, the LP hardly moves."""

MOST = 400
"""Rows added at once, those broken most: with more, later ones are mostly repetitions."""

Terms = dict[int, float]


class Runs(NamedTuple):
    """A job in a slot: how wide it is, how much of it the LP has running, the terms of that."""

    width: int
    part: float
    terms: Terms


class Cuts:
    """Finds broken rows of one model."""

    def __init__(self, model: Model) -> None:
        """O(entries of the model)."""
        self._capacity = model.problem.capacity()
        self._widths = sorted({t.width for t in model.problem.tasks if t.width > 1}, reverse=True)
        contended = model.problem.contended()
        self._slots: dict[int, list[tuple[int, Terms]]] = {}
        for place, task in enumerate(model.problem.tasks):
            for slot, terms in model.running(place, task):
                if contended[slot]:
                    self._slots.setdefault(slot, []).append((task.width, terms))

    def broken(self, values: Sequence[float]) -> list[Row]:
        """The rows that these values of the LP break most."""
        found: list[tuple[float, Row]] = []
        for slot, jobs in self._slots.items():
            runs = [Runs(width, _part(values, terms), terms) for width, terms in jobs]
            runs = sorted((run for run in runs if run.part > 1e-7), key=_most_first)
            for width in self._widths:
                if any(r.width >= width and 1e-6 < r.part < 1 - 1e-6 for r in runs):
                    found += self._of_slot(int(self._capacity[slot]), width, runs)
        found.sort(key=lambda pair: -pair[0])
        return [row for _, row in found[:MOST]]

    def _of_slot(self, capacity: int, u: int, runs: Sequence[Runs]) -> Iterator[tuple[float, Row]]:
        """Of a slot and a divisor, the row that is broken most, and by how much of its length."""
        wide = [run for run in runs if run.width >= u]
        narrow = [run for run in runs if run.width < u]
        best: tuple[float, int] = VIOLATED, -1
        for counted in range(len(narrow) + 1):
            if 0 < counted < len(narrow) and narrow[counted - 1].part == narrow[counted].part:
                continue
            left = capacity - sum(run.width for run in narrow[:counted])
            if left % u:
                _, weights, high = _rounded(left, u, wide, narrow, counted)
                parts = [run.part for run in (*wide, *narrow)]
                by = sum(w * p for w, p in zip(weights, parts, strict=True)) - high
                best = max(best, (by, counted))
        if best[1] >= 0:
            left = capacity - sum(run.width for run in narrow[: best[1]])
            row = _row(*_rounded(left, u, wide, narrow, best[1]))
            length = sum(c * c for c in row.coefficients) ** 0.5
            if length:
                yield best[0] / length, row


def _most_first(run: Runs) -> tuple[float, int]:
    return -run.part, -run.width


def _part(values: Sequence[float], terms: Terms) -> float:
    return sum(c * (1.0 if k == CONSTANT else values[k]) for k, c in terms.items())


def _rounded(
    left: int, u: int, wide: Sequence[Runs], narrow: Sequence[Runs], counted: int
) -> tuple[Sequence[Runs], list[float], float]:
    """Runs, the weight of each, and what their weighted sum is at most.

    The first `counted` narrow jobs are taken as running, and `left` GPUs remain; what of them does
    not run counts against the rest.
    """
    over = left % u / u

    def weight(gpus: int) -> float:
        whole = floor(gpus / u)
        return whole + max(0.0, (gpus / u - whole - over) / (1.0 - over))

    back = [-weight(-run.width) for run in narrow[:counted]]
    weights = [weight(run.width) for run in wide]
    others = [weight(run.width) for run in narrow[counted:]]
    return [*wide, *narrow], [*weights, *back, *others], left // u + sum(back)


def _row(runs: Sequence[Runs], weights: Sequence[float], high: float) -> Row:
    row: Terms = {}
    for run, weight in zip(runs, weights, strict=True):
        if weight:
            for variable, coefficient in run.terms.items():
                row[variable] = row.get(variable, 0.0) + weight * coefficient
    high -= row.pop(CONSTANT, 0.0)
    kept = {variable: c for variable, c in row.items() if abs(c) > 1e-12}
    return Row([*kept], [*kept.values()], -inf, high)
