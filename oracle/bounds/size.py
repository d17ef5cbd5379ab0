"""Estimate the size of a program before it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oracle.bounds.slot_cells import FIRST
from oracle.limits import MAX_NONZEROS
from oracle.problem.problem import Problem
from sia.console.errors import UserError


class Size(NamedTuple):
    """Variables and coefficients of a program."""

    variables: int
    nonzeros: int


def estimate(problem: Problem, form: str) -> Size:
    """Estimate the size of the first program; growing horizons add about a third.

    In the step form, a job has two coefficients in the row of each slot in which it can run, and
    two for each of its cells. In the pulse form it has one for each cell, up to its length.
    """
    variables = nonzeros = 0
    for task in problem.tasks:
        cells = min(task.latest - task.release, FIRST) + 1
        slots = cells + task.length
        variables += cells
        nonzeros += 2 * (slots + cells) if form == "step" else cells * task.length + cells
    return Size(variables, nonzeros * (2 if problem.beta else 1))


def refuse_too_large(found: Sequence[tuple[float, Problem]], form: str) -> Size:
    """Return the largest size of the problems. Raises UserError if it is too large."""
    largest = Size(0, 0)
    for _, problem in found:
        largest = max(largest, estimate(problem, form), key=lambda size: size.nonzeros)
    if largest.nonzeros > MAX_NONZEROS:
        raise UserError(
            f"the program has about {largest.nonzeros:,} coefficients, more than {MAX_NONZEROS:,}; "
            "use a longer --slot or a shorter --window"
        )
    return largest
