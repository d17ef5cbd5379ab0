"""Weighted fair queueing of job sizes (PCS, §3).

Imports: contract, policies.shared.
"""
