"""Forecast models: train, store, evaluate and show them.

Imports: logs, run, plotting.
"""
