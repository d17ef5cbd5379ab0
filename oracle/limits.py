"""Limits on the size of the oracle's models, with the reason for each."""

MAX_SLOTS = 10_000_000
"""Maximum number of slots from the first submission to the last end; at 1 s this is four months.
Each slot needs a capacity row, and a larger number probably comes from a slot length in the wrong
unit."""

MAX_NONZEROS = 20_000_000
"""Maximum number of non-zero coefficients of a program. PuLP, HiGHS and the rows take about 300
bytes for each, 6 GB in total."""
