"""Elastic policies that treat each pool separately, for comparison with wfq (PCS, §5.1).

Imports: contract, policies.shared.
"""
