"""Deadlines: the rewards that jobs earned, and generators of workloads with deadlines.

Imports: logs.
"""
