"""Chronus: deadlines kept by leases, with trials and a place on nodes for each job.

Imports: contract, state.
"""
