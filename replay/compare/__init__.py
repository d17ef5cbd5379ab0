"""Compare two results job by job or run by run, with confidence intervals.

Imports: experiment, run.
"""
