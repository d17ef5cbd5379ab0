"""Forecasts of load: how many GPUs a pool's new jobs will need within a window.

Imports: sia, predictors.learning.
"""
