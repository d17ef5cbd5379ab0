"""Fair over time: Shockwave's market of rounds, what it foresees, and its rivals in rounds.

Imports: contract, model, program.
"""
