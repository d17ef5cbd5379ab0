"""Policies with which Chronus is compared: they use deadlines and make no promises.

Imports: contract, policies.shared.
"""
