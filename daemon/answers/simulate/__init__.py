"""Questions to a forked copy of the engine: play it forward, change it, compare.

Imports: engine, forecasts, wire.
"""
