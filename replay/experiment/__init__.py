"""Experiments on many pieces of a log: draw, replay, measure and present them.

Imports: run, report, plotting.
"""
