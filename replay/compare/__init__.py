"""Two outcomes compared job by job, with intervals.

Imports: experiment, run.
"""
