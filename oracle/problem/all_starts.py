"""All starts of all tasks in one row, so that numpy prices them at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oracle.arrays import Counts, Floats
from oracle.problem.problem import Problem

MOST_STARTS = 5_000_000
"""Starts that are held at once: a dozen arrays of them take 0.5 GB."""

MOST_RUNNING = 10_000_000
"""Tasks times slots: a table of who has begun when takes 80 MB then, a program 1 GB at worst."""


class Starts(NamedTuple):
    """The starts of each task in turn: whose they are, the slot, the end, and what they cost.

    `first` is where each task's begin; `width`, `length` and `release` are by task.
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
        """Where in the row a start of each task is."""
        return self.first + starts - self.release

    def least(self, costs: Floats) -> Floats:
        """The least cost of each task."""
        return np.asarray(np.minimum.reduceat(costs, self.first))

    def split(self, values: Floats) -> list[Floats]:
        """What belongs to each task."""
        return np.split(values, self.first[1:])


def fits(problem: Problem) -> bool:
    """Whether all starts can be held at once."""
    there = bool(problem.tasks) and problem.choices <= MOST_STARTS
    return there and len(problem.tasks) * problem.slots <= MOST_RUNNING


def starts_of(problem: Problem) -> Starts:
    """All starts of a problem that has tasks; O(their number)."""
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
