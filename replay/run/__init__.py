"""One replay: drive the core in virtual time, record the schedule, measure it, write it.

Imports: logs, cluster, predictors.
"""
