"""All possible starts of all tasks in one array, so that numpy prices them at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oracle.arrays import Counts, Floats
from oracle.problem.problem import Problem

MOST_STARTS = 5_000_000
"""Maximum number of starts in memory: a dozen arrays of this length take 0.5 GB."""

MOST_RUNNING = 10_000_000
"""Maximum product of tasks and slots: a table of this size takes 80 MB, a program up to 1 GB."""


class Starts(NamedTuple):
    """The possible starts, grouped by task: task, start slot, end slot and cost of each.

    `first` is the index of each task's first start. `width`, `length` and `release` have one value
    per task.
    """

    problem: Problem
    task: Counts
    slot: Counts
    end: Counts
    cost: Floats
    first: Counts
    width: Counts
    length: Counts
    release: Counts

    def at(self, starts: Counts) -> Counts:
        """Return the indices of one start (slot) per task."""
        return self.first + starts - self.release

    def least(self, costs: Floats) -> Floats:
        """Return the lowest cost of each task."""
        return np.asarray(np.minimum.reduceat(costs, self.first))

    def split(self, values: Floats) -> list[Floats]:
        """Split an array with one value per start by task."""
        return np.split(values, self.first[1:])


def fits(problem: Problem) -> bool:
    """Return whether all starts fit in memory."""
    there = bool(problem.tasks) and problem.choices <= MOST_STARTS
    return there and len(problem.tasks) * problem.slots <= MOST_RUNNING


def starts_of(problem: Problem) -> Starts:
    """Return all starts of a problem with at least one task. O(starts)."""
    rows = [(t.release, t.latest, t.length, t.width, t.cutoff) for t in problem.tasks]
    release, latest, length, width, cutoff = np.array(rows, dtype=np.int64).T
    weight = np.array([task.weight for task in problem.tasks])
    price = np.array([task.price for task in problem.tasks])
    counts = latest - release + 1
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    task = np.repeat(np.arange(len(rows)), counts)
    slot = np.arange(len(task)) - first[task] + release[task]
    cost = weight[task] * (slot - release[task])
    cost += price[task] * np.maximum(0, slot - cutoff[task])
    return Starts(problem, task, slot, slot + length[task], cost, first, width, length, release)
