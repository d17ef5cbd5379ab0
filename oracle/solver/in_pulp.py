"""Convert a program to PuLP (3.3 and 4)."""

from __future__ import annotations

from math import inf
from typing import Any

import pulp

from oracle.solver.program import Milp


def in_pulp(milp: Milp, *, relaxed: bool = False) -> tuple[Any, list[Any]]:
    """Return the PuLP problem and its variables in order. The offset is omitted."""
    problem = pulp.LpProblem("oracle", pulp.LpMinimize)
    digits = len(str(len(milp.costs)))  # PuLP 3 sorts by name
    variables = [
        problem.add_variable(
            f"x{i:0{digits}}", 0, None if high == inf else high,
            pulp.LpInteger if binary and not relaxed else pulp.LpContinuous,
        )
        for i, (high, binary) in enumerate(zip(milp.highs, milp.binary, strict=True))
    ]  # fmt: skip
    expression = getattr(pulp.LpAffineExpression, "from_list", pulp.LpAffineExpression)
    problem.setObjective(expression(list(zip(variables, milp.costs, strict=True))))
    for row in milp.rows:
        left = expression(
            [(variables[i], c) for i, c in zip(row.variables, row.coefficients, strict=True)]
        )
        problem.addConstraint(left == row.high if row.low == row.high else left <= row.high)
    return problem, variables
