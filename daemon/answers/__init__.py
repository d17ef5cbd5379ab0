"""Answers that need more than the state: estimates, what-if questions, explanations.

Imports: service, forecasts, engine and below.
"""
