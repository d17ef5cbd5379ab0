"""The Lagrangian bound: prices of GPUs by slot, and the lower bound that follows.

Drop the capacity limit and let jobs pay a price for each GPU and slot instead. Each job then takes
the start with the lowest sum of waiting and payment. No schedule costs less than the sum of these
minima minus the value of the cluster's GPUs at these prices. This holds for any prices, so the
bound does not depend on a solver's tolerance. With the duals of the LP it equals the LP bound.
"""

from __future__ import annotations

import numpy as np

from oracle.arrays import Floats
from oracle.problem.problem import Problem, Task


def costs_of(task: Task, sums: Floats) -> Floats:
    """Return the cost plus payment of each start of a task; `sums` are `accumulated` prices."""
    starts = np.arange(task.release, task.latest + 1)
    costs = task.weight * (starts - task.release)
    if task.price:
        costs = costs + task.price * np.maximum(0, starts - task.cutoff)
    return np.asarray(costs + task.width * (sums[starts + task.length] - sums[starts]))


def accumulated(prices: Floats) -> Floats:
    """Return the sums of the prices before each slot, shape (slots + 1,)."""
    return np.concatenate([[0.0], np.cumsum(prices)])


def priced_bound(problem: Problem, prices: Floats) -> float:
    """Return the bound, ignoring unfairness. O(total length of the start windows)."""
    sums = accumulated(prices)
    least = sum(float(costs_of(task, sums).min()) for task in problem.tasks)
    return least - float(prices @ problem.capacity())
