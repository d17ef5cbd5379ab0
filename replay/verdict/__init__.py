"""Say what a replay means for a decision: which policy to use, what it gains, what it risks.

Imports: run, logs.
"""
