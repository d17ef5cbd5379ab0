"""Chronus: deadlines kept by leases, and its rivals.

Imports: shared, contract, state.
"""
