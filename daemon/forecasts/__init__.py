"""Predictors of loads and run times: queries, history, drift detection and retraining.

Imports: engine, model, runtime.
"""
