"""Placement of jobs on nodes (Chronus, §3.4).

Imports: leases, contract, state.
"""
