"""The loop: collect inputs, make one step, commit it, apply its effects.

Imports: engine, journal, backends, forecasts.
"""
