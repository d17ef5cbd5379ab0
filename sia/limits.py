"""Every limit of the core, with its reason."""

MAX_QUOTA = 2**20
"""GPUs of one pool. Below it, and below `MAX_GROUP`, allocation / quota in floats orders pools
exactly as cross-multiplied integers would: two different ratios differ by at least
1 / (quota · quota) ≥ 2⁻⁴⁰, equal ratios round to equal floats, and a ratio of at most 2¹² is
rounded by less than 2⁻⁴¹."""

MAX_GROUP = 2**26
"""GPUs of one sharing group: see `MAX_QUOTA`; also far beyond any cluster known."""

UNLIMITED = MAX_GROUP
"""GPUs that a pool may lend, or borrow, if nothing is said: all that there can be."""

MAX_WEIGHT = 1000.0
"""Weights of pools are a thousandth to a thousand: beyond that a pool is always the first or last,
which its quota says better."""

MAX_PRIORITY = 1_000_000
"""Priorities are between minus and plus a million: far more steps than anybody tells apart, and a
job's place in its queue (`STRIDE`) still fits in 64 bits."""

STRIDE = 2**40
"""Places in a queue for each priority: more jobs than ever arrive, at a thousand a second for
thirty years."""

TICK = 300.0
"""Seconds between decision passes while something is idle and something waits (Fig. 7)."""

RECENT = 12
"""Past windows that the sliding maximum remembers: an hour for 5 minutes, half a day for 1 hour,
six days for 12 hours."""

WINDOWS = (300.0, 3600.0, 43200.0)
"""The paper's time quanta in seconds: 5 minutes, 1 hour, 12 hours (§5.4)."""

MAX_WINDOWS = 16
"""Windows a run may have: each costs one forecast and one reservation per pool."""

LONGEST_WINDOW = 30 * 86400.0
"""Seconds: forecasts keep counts by tick for the longest window, and nobody foresees a month."""

SLOWED = 1e-3
"""Seconds by which a job must end later than in the baseline to count as slowed: less is rounding
of float64 times."""

MAX_SLOWED_PCT = 0.1
"""Percent of jobs that may end later than without sharing where a share controller watches: the
operator's budget, unless another one is set."""

MAX_IDLE_WAKES = 10_000
"""Wakes in a row, with nothing running and nothing more to come, after which a playout ends: what
still waits after 35 days of ticks can never start, as its pool has shrunk below its width."""

UNKNOWN_RUN_TIME = 1e12
"""Seconds, the estimate for a job of which nothing is known: beyond every window, so that nobody
lends to it, and finite, so that events are JSON."""

NEVER = 1e18
"""Seconds, the virtual start of a job that the baseline never starts; finite as well."""

LAS_THRESHOLDS = (3600.0, 36000.0)
"""GPU-seconds: three queues, for jobs of up to one GPU-hour, up to ten, and the rest. On Philly
seven jobs in ten never leave the first queue, and one in nine reaches the last."""

LAS_PROMOTE = 8.0
"""Waits of less than eight times its run do not promote a job: a lower number turns queues into
turns."""

MAX_QUEUES = 16
"""Thresholds of LAS: with more, queues are hardly told apart."""

LEAST_THRESHOLD = 60.0
"""GPU-seconds of LAS's first queue: each threshold that a job crosses is a decision pass, and a job
that is promoted crosses them again; below a minute, passes would outnumber everything else."""

LEAST_PROMOTE = 0.1
"""LAS's promotion: below it jobs take turns every few seconds, as above."""

MAX_RESUME_COST = 86400.0
"""Seconds: a checkpoint that takes a day to load is none."""

RECALL = 0.1
"""Part of a window: a spare job that loses half a minute when it is stopped counts as gone within
five minutes, one that loses an hour within twelve hours."""

MAX_TIME = 1e15
"""Seconds, of a time or a duration: beyond, float64 no longer tells seconds apart well enough to
add them (at 1e15 its step is an eighth of a second)."""
