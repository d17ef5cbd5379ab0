"""Limits of what is read and drawn, with their reasons."""

MAX_LINE = 2**20
"""Characters of one line of a text file. Real rows have hundreds; a longer line is no job log, and
reading on would fill the memory with it."""

MAX_JSON = 2**30
"""Bytes of one JSON log. Philly's whole log has 70 MB; JSON is read whole."""

POOLS_DRAWN = 16
"""Pools with a time line in the report, those with most GPU-hours: more make no picture."""

POINTS_DRAWN = 400
"""Points of a curve in the report: about one per pixel of its width."""

ROWS_SHOWN = 40
"""Pools in a terminal table, those with most jobs; `summary.json` holds all."""

WIDTHS_SHOWN = 5
"""Widths of a pool's jobs that `sia trace info` shows, the most frequent: more make no line."""

MAX_LOAD = 10.0
"""Load that quotas are scaled to; beyond, it was more likely meant in percent."""

MAX_JOBS_MADE = 10_000_000
"""Jobs that `sia trace synth` will make: more would not fit in memory."""

MIN_DURATION = 1e-6
"""Seconds: below, times no longer show the difference, and speed-ups become infinite."""

MAX_RESAMPLES = 1_000_000
"""Times that `sia compare` draws the pairs anew: an interval's ends no longer move beyond it, and
the means of each time are kept (40 bytes)."""

DRAWN_AT_ONCE = 2**19
"""Pairs drawn anew at once: some MB, however many times they are drawn."""

MAX_RUNS = 10_000
"""Runs of an experiment for each number of queues: all are planned in memory before the first."""

WINDOWS_DRAWN = 1_000
"""Windows an experiment draws for one run before it gives up: a second at most; by then less than
one window in hundreds would do."""

MAX_HOURS = 100_000
"""Hours (11 years) of a log in an experiment, which writes utilisation hour by hour; a longer log
is more likely in milliseconds."""
