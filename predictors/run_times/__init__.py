"""Predictors of run times.

Imports: sia.
"""
