"""Policies with which Chronus is compared: they look at deadlines and promise nothing.

Imports: contract, policies.shared.
"""
