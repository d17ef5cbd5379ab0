"""Forecasts for the core.

They receive values, never files; see `sia.forecasts` for the interface.
"""
