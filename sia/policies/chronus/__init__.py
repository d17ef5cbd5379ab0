"""Chronus: promised deadlines, kept by leases; trials of new jobs; placement on nodes.

Imports: contract, state.
"""
