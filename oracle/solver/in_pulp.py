"""Convert a program to PuLP (3.3 and 4), for solvers that have no interface of their own."""

from __future__ import annotations

from math import inf
from typing import Any

import pulp

from sia.program import Program


def in_pulp(program: Program, *, relaxed: bool = False) -> tuple[Any, list[Any]]:
    """Return the PuLP problem and its variables in order. The offset is omitted."""
    problem = pulp.LpProblem("program", pulp.LpMinimize)
    digits = len(str(len(program.costs)))  # PuLP 3 sorts by name
    variables = [
        problem.add_variable(
            f"x{i:0{digits}}", low, high,
            pulp.LpInteger if whole and not relaxed else pulp.LpContinuous,
        )
        for i, (low, high, whole) in enumerate(
            zip(program.lows, program.highs, program.whole, strict=True)
        )
    ]  # fmt: skip
    expression = getattr(pulp.LpAffineExpression, "from_list", pulp.LpAffineExpression)
    problem.setObjective(expression(list(zip(variables, program.costs, strict=True))))
    for row in program.rows():
        terms = [(variables[i], c) for i, c in zip(row.columns, row.coefficients, strict=True)]
        if row.low == row.high:
            problem.addConstraint(expression(terms) == row.high)
            continue
        if row.high < inf:
            problem.addConstraint(expression(terms) <= row.high)
        if row.low > -inf:
            problem.addConstraint(expression(terms) >= row.low)
    return problem, variables
