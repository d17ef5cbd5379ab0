"""Simulations on a forked copy of the engine.

Imports: engine, forecasts, wire.
"""
