"""Cell types, cluster shapes and requests, as values.

Imports: nothing else of cells.
"""
