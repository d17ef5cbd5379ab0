"""What a GPU is worth in each slot, and the bound that follows from it.

Let whoever runs pay for the GPUs, and let there be as many as anyone wants: then each job goes
where waiting and paying together cost least, and no schedule costs less than all jobs' least costs
together, less what the cluster's GPUs are worth. That holds for any prices, so that this bound does
not hang on a solver's tolerance; with the duals of the LP it is the LP's.
"""

from __future__ import annotations

import numpy as np

from oracle.arrays import Floats
from oracle.problem.problem import Problem, Task


def costs_of(task: Task, sums: Floats) -> Floats:
    """What each start of a task costs, paying included; `sums` are `accumulated` prices."""
    starts = np.arange(task.release, task.latest + 1)
    costs = task.weight * (starts - task.release)
    if task.price:
        costs = costs + task.price * np.maximum(0, starts - task.cutoff)
    return np.asarray(costs + task.width * (sums[starts + task.length] - sums[starts]))


def accumulated(prices: Floats) -> Floats:
    """Sums of the prices before each slot."""
    return np.concatenate([[0.0], np.cumsum(prices)])


def priced_bound(problem: Problem, prices: Floats) -> float:
    """The bound; O(all windows). Fairness is left out, as if it cost nothing."""
    sums = accumulated(prices)
    least = sum(float(costs_of(task, sums).min()) for task in problem.tasks)
    return least - float(prices @ problem.capacity())
