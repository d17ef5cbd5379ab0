"""Predictors beside the engine: informed, queried, checked for drift, retrained.

Imports: engine, model, runtime.
"""
