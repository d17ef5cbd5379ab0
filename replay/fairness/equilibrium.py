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
"""Violation of the optimality conditions, relative to the largest budget, at which to end."""

MOST_STEPS = 300
"""Maximum number of Newton steps; usually a few dozen are enough."""

PATIENCE = 30
"""Number of steps without progress after which the method ends. If several allocations are optimal,
the equations are nearly singular, and rounding errors prevent the accuracy asked for."""

CENTERING = 0.2
"""Factor by which each step tries to reduce the complementarity: a smaller one is less stable."""

TO_BOUND = 0.95
"""Maximum length of a step, as a share of the distance to the nearest bound."""

Needs = Sequence[Sequence[Sequence[float]]]
"""The amount that one unit of gain takes, by job, round and resource; infinity if useless."""


class Equilibrium(NamedTuple):
    """The equilibrium of a market: the gain of each job, and the prices."""

    objective: float
    """Σ budget · ln gain."""
    gains: list[float]
    prices: list[list[float]]
    """Prices by round and resource."""


def leontief(utilities: Sequence[Sequence[float]]) -> Needs:
    """Convert linear utilities into needs of one resource; a utility of 0 becomes infinity."""
    return [[[1.0 / u if u else inf] for u in rounds] for rounds in utilities]


def equilibrium(budgets: Sequence[float], needs: Needs) -> Equilibrium:
    """Return the equilibrium. Every job must gain in some round, and no gain may be free.

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
    # Rounding errors are smallest if all variables are about 1.
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
    s = np.maximum(1.0 - takes @ x, 0.1)  # unsold amounts
    p = np.full(goods, budgets.sum() / goods)
    z = np.full(parts, float(budgets.mean()))  # dual slack: cost above gain
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
    """Return the share of a change after which the first value is nearly 0."""
    shrinks = change < 0
    if not shrinks.any():
        return inf
    return TO_BOUND * float((values[shrinks] / -change[shrinks]).min())
