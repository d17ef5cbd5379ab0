"""Policies that run every job to completion: the baseline and most rivals of the paper (§6.1).

Imports: shared.
"""
