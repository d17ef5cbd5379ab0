"""Schedules: list scheduling, annealing, small programs, and the solve that runs them.

Imports: bounds, problem, solver.
"""
