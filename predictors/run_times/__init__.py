"""Forecasts of run times.

Imports: sia.
"""
