"""Features, training and models of learned forecasts.

Imports: sia.
"""
