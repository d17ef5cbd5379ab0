"""The scheduling problem on a grid of slots, and the forms of its program.

Imports: oracle.solver, replay, sia.
"""
