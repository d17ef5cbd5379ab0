"""One run of the oracle: read the log, solve each sharing group, replay and write the result.

Imports: search, bounds, problem.
"""
