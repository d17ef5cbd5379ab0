"""Job logs: read, check, cut and split them.

Imports: sia, sia.console.
"""
