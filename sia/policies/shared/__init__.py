"""Data structures that several policies use: queues, rankings, searches.

Imports: sia.policies, state.
"""
