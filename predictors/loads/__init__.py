"""Forecasts of load: the GPUs that a pool's new jobs will need within a window.

Imports: sia, predictors.learning.
"""
