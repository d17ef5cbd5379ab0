"""Elastic policies that each pool runs by itself: rivals of wfq (PCS, §5.1).

Imports: contract, policies.shared.
"""
