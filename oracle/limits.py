"""Limits of what the oracle models, with their reasons."""

MAX_SLOTS = 10_000_000
"""Slots from the first submission to the last end: at 1 s they are four months. Each holds its row
of capacity, and a longer span is more likely a slot given in the wrong unit."""

MAX_NONZEROS = 20_000_000
"""Entries of a program's rows: PuLP, HiGHS and the rows themselves take about 300 bytes for each,
6 GB in all."""
