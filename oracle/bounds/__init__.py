"""Lower bounds on the total waiting time: prices, LP, cuts, branch and price.

Imports: problem, solver.
"""
