"""Jobs in Kubernetes, as suspended batch/v1 Jobs.

Imports: backends.interface, model, runtime, config, journal.
"""
