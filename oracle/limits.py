"""Limits of what the oracle models, with their reasons."""

MAX_SLOTS = 10_000_000
"""Slots from the first submission to the last end: at 1 s they are four months. Each holds its row
of capacity, and a longer span is more likely a slot given in the wrong unit."""
