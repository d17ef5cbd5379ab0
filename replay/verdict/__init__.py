"""The verdict of a replay: which policy to use, what it gains, and what it risks.

Imports: run, logs.
"""
