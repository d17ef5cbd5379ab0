"""Kubernetes backend: jobs are suspended batch/v1 Jobs.

Imports: backends.interface, model, runtime, config, journal.
"""
