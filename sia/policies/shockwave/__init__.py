"""Fairness over time: Shockwave's market of rounds, its predictions, and rivals in rounds.

Imports: contract, model, program.
"""
