"""Limits of input and output sizes, with the reason for each."""

MAX_LINE = 2**20
"""Largest number of characters in a line of a text file. Real rows have hundreds; a longer line is
not from a job log and would only fill the memory."""

MAX_JSON = 2**30
"""Largest JSON log, in bytes: JSON is read into memory at once. The whole Philly log has 70 MB."""

POOLS_DRAWN = 16
"""Pools with a time line in the report, chosen by GPU-hours: more would be unreadable."""

POINTS_DRAWN = 400
"""Points of a curve in the report: about one per pixel of the figure's width."""

ROWS_SHOWN = 40
"""Pools in a terminal table, chosen by number of jobs; `summary.json` lists all."""

WIDTHS_SHOWN = 5
"""Most frequent job widths that `sia trace info` shows for each pool: more do not fit in a line."""

MAX_LOAD = 10.0
"""Largest load to which quotas can be scaled; a larger value was probably meant as a percentage."""

MAX_JOBS_MADE = 10_000_000
"""Largest number of jobs that `sia trace synth` generates: more would not fit in memory."""

MIN_DURATION = 1e-6
"""Shortest duration of a job, in seconds. Below it, floating-point times cannot represent the
difference and speed-ups become infinite."""

MAX_RESAMPLES = 1_000_000
"""Largest number of bootstrap resamples of `sia compare`. More do not change the interval, and each
takes 40 bytes."""

DRAWN_AT_ONCE = 2**19
"""Pairs resampled in one batch: bounds the memory to a few MB for any number of resamples."""

MAX_RUNS = 10_000
"""Largest number of runs of an experiment per number of queues: all runs are planned in memory."""

WINDOWS_DRAWN = 1_000
"""Windows that an experiment draws for one run before it fails. Drawing them takes at most a
second; if none is suitable, fewer than one window in hundreds is."""

MAX_HOURS = 100_000
"""Longest log of an experiment, in hours (11 years). An experiment writes the utilisation of every
hour, and a longer log is probably in milliseconds."""

MAX_DRAWN = 1_000_000
"""Largest number of jobs drawn from distributions: ten times as many as the largest log has."""

MAX_PARTS = 1000
"""Largest number of parts of a GPU: a thousandth is finer than any share that matters."""

LEAST_HISTORY = 10
"""Smallest number of jobs in a history from which queues are derived."""
