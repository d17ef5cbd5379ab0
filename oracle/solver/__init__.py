"""Programs of plain numbers and the solvers that take them.

Imports: nothing else of oracle.
"""
