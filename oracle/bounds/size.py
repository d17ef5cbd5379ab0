"""How large a program becomes, before it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oracle.bounds.slot_cells import FIRST
from oracle.limits import MAX_NONZEROS
from oracle.problem.problem import Problem
from sia.console.errors import UserError


class Size(NamedTuple):
    """Variables of a program and entries of its rows."""

    variables: int
    nonzeros: int


def estimate(problem: Problem, form: str) -> Size:
    """About the size of the first program; horizons grow from there, by a third or so.

    In the step form a job has two entries in a row of each slot in which it may run, and in one for
    each of its cells; in the pulse form as many as it has cells, up to its length.
    """
    variables = nonzeros = 0
    for task in problem.tasks:
        cells = min(task.latest - task.release, FIRST) + 1
        slots = cells + task.length
        variables += cells
        nonzeros += 2 * (slots + cells) if form == "step" else cells * task.length + cells
    return Size(variables, nonzeros * (2 if problem.beta else 1))


def refuse_too_large(found: Sequence[tuple[float, Problem]], form: str) -> Size:
    """The largest of their sizes. Raises UserError where one would not fit."""
    largest = Size(0, 0)
    for _, problem in found:
        largest = max(largest, estimate(problem, form), key=lambda size: size.nonzeros)
    if largest.nonzeros > MAX_NONZEROS:
        raise UserError(
            f"about {largest.nonzeros:,} entries in the program, of {MAX_NONZEROS:,} that fit; "
            "give a longer --slot, or a shorter --window"
        )
    return largest
