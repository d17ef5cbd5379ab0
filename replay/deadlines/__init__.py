"""Deadlines: what ends were worth, and workloads with deadlines.

Imports: logs.
"""
