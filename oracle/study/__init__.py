"""Studies and sweeps: the oracle beside the policies on many workloads.

Imports: run.
"""
