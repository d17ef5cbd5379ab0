"""The equilibrium of a divisible volatile Fisher market (Shockwave, appendices C and D).

One unit of each round is for sale, or of each resource in each round. The allocation maximises
Σ budget · ln gain (Eisenberg-Gale); the multipliers of what is for sale are the prices. Newton's
method follows the central path to both (a primal-dual interior-point method).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

ACCURATE = 1e-12
"""Violation of an optimality condition, of the largest budget, at which the method ends."""

MOST_STEPS = 300
"""Newton steps at most; a few dozen are usual."""

PATIENCE = 30
"""Steps after which the method ends if none of them came nearer. Where several allocations are
best, rounding in nearly singular equations keeps it from being as accurate as asked."""

CENTERING = 0.2
"""Part of the complementarity that each step aims at: smaller is faster and less steady."""

TO_BOUND = 0.95
"""Part of the way to the nearest bound that a step goes at most."""

Needs = Sequence[Sequence[Sequence[float]]]
"""By job, round and resource: how much of it one unit of gain takes; infinity if it is useless."""


class Equilibrium(NamedTuple):
    """What a market comes to."""

    objective: float
    """Σ budget · ln gain."""
    gains: list[float]
    prices: list[list[float]]
    """By round and resource."""


def leontief(utilities: Sequence[Sequence[float]]) -> Needs:
    """Return linear utilities as needs of one resource; a utility of 0 needs infinitely much."""
    return [[[1.0 / u if u else inf] for u in rounds] for rounds in utilities]


def equilibrium(budgets: Sequence[float], needs: Needs) -> Equilibrium:
    """Return the equilibrium. Every job must gain something in some round, and nothing is free.

    O((jobs · rounds)³) a step.
    """
    rounds, resources = len(needs[0]), len(needs[0][0])
    parts = [(i, t) for i, job in enumerate(needs) for t, need in enumerate(job) if max(need) < inf]
    takes = np.zeros((rounds * resources, len(parts)))
    whose = np.zeros((len(budgets), len(parts)))
    for column, (i, t) in enumerate(parts):
        takes[t * resources : (t + 1) * resources, column] = needs[i][t]
        whose[i, column] = 1.0
    wanted = takes.any(axis=1)
    # With variables that are all about 1, rounding costs the least.
    scale = 1.0 / (len(budgets) * takes.max(axis=0))
    money = np.asarray(budgets, dtype=np.float64) / max(budgets)
    amounts, sold = _central_path(money, takes[wanted] * scale, whose * scale)
    gains = [float(gain) for gain in (whose * scale) @ amounts]
    prices = np.zeros(rounds * resources)
    prices[wanted] = sold * max(budgets)
    return Equilibrium(
        fsum(b * log(g) for b, g in zip(budgets, gains, strict=True)),
        gains,
        [[float(p) for p in row] for row in prices.reshape(rounds, resources)],
    )


def _central_path(budgets: Vector, takes: Vector, gives: Vector) -> tuple[Vector, Vector]:
    """Return amounts ≥ 0 that maximise Σ budget · ln(gives · amounts), and prices ≥ 0.

    takes · amounts ≤ 1. Shapes: budgets (jobs,), takes (goods, parts), gives (jobs, parts).
    """
    goods, parts = takes.shape
    x = np.full(parts, 0.5)
    s = np.maximum(1.0 - takes @ x, 0.1)  # what is not sold
    p = np.full(goods, budgets.sum() / goods)
    z = np.full(parts, float(budgets.mean()))  # by how much a part is too dear
    nearest, found, since = inf, (x, p), 0
    for _ in range(MOST_STEPS):
        rate = budgets / (gives @ x)
        dual = gives.T @ rate - takes.T @ p + z
        primal = 1.0 - takes @ x - s
        gap = float(x @ z + s @ p) / (goods + parts)
        misses = max(float(np.abs(dual).max()), float(np.abs(primal).max()), gap)
        if misses < nearest:
            nearest, found, since = misses, (x, p), 0
        since += 1
        if nearest <= ACCURATE or since > PATIENCE:
            break
        aim = CENTERING * gap
        center_x, center_s = aim - x * z, aim - s * p
        bends = gives.T @ ((rate**2 / budgets)[:, None] * gives)
        matrix = bends + (takes.T * (p / s)) @ takes + np.diag(z / x)
        right = dual + center_x / x - takes.T @ ((center_s - p * primal) / s)
        try:
            dx = np.linalg.solve(matrix, right)
        except np.linalg.LinAlgError:  # several allocations are best: take the shortest step
            dx = np.linalg.lstsq(matrix, right)[0]
        dz = (center_x - z * dx) / x
        ds = primal - takes @ dx
        dp = (center_s - p * ds) / s
        step = min(1.0, *(_to_bound(v, d) for v, d in ((x, dx), (s, ds), (p, dp), (z, dz))))
        x, s, p, z = x + step * dx, s + step * ds, p + step * dp, z + step * dz
    return found


def _to_bound(values: Vector, change: Vector) -> float:
    """Return the part of a change after which a value is nearly 0."""
    shrinks = change < 0
    if not shrinks.any():
        return inf
    return TO_BOUND * float((values[shrinks] / -change[shrinks]).min())
