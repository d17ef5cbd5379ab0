"""Many pieces of a log: draw, replay, measure and show them.

Imports: run, report, plotting.
"""
