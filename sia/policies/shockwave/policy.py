"""Shockwave."""

from sia.program import SolveLimit

MOST_ROUNDS = 100
"""Most rounds of a window: beyond three hours nothing that is planned comes true."""

SOLVE_GAP = 1e-4
SOLVE_LIMIT = SolveLimit(15.0, 2_000, 200_000, SOLVE_GAP)
