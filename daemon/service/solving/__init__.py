"""A child process that solves the core's programs, so that no step waits for a solver.

Imports: model, runtime.
"""
