"""Every limit of the core, with its reason."""

MAX_QUOTA = 2**20
"""Largest quota of a pool, in GPUs.

Below this limit and `MAX_GROUP`, comparing allocation / quota as floats orders pools exactly as
integer cross-multiplication would: two different ratios differ by at least 1 / (quota · quota) ≥
2⁻⁴⁰, equal ratios round to equal floats, and a ratio of at most 2¹² is rounded by less than 2⁻⁴¹.
"""

MAX_GROUP = 2**26
"""Largest number of GPUs of a sharing group. See `MAX_QUOTA`; no known cluster comes near it."""

UNLIMITED = MAX_GROUP
"""The lend or borrow limit of a pool that sets none: the maximum possible."""

MAX_WEIGHT = 1000.0
"""Weights of pools are between 1/1000 and 1000.

A more extreme pool would always come first or last; change its quota instead.
"""

MAX_PRIORITY = 1_000_000
"""Priorities are between minus and plus one million, more steps than anyone needs.

Within this range the order in a queue (`STRIDE`) fits in 64 bits.
"""

STRIDE = 2**40
"""Sequence numbers per priority. At 1000 arrivals a second they last thirty years."""

TICK = 300.0
"""Seconds between decision passes while GPUs are idle and jobs are pending (Fig. 7)."""

RECENT = 12
"""Number of past windows that the sliding maximum remembers: an hour of 5-minute windows, half a
day of 1-hour windows, six days of 12-hour windows."""

WINDOWS = (300.0, 3600.0, 43200.0)
"""The paper's time quanta in seconds: 5 minutes, 1 hour, 12 hours (§5.4)."""

MAX_WINDOWS = 16
"""Maximum number of windows. Each costs one forecast and one reservation per pool."""

LONGEST_WINDOW = 30 * 86400.0
"""Longest window in seconds.

Forecasts store a count for each tick of the longest window, and no forecast is useful for a month.
"""

SLOWED = 1e-3
"""Seconds by which a job must end later than in the baseline to count as slowed.

Smaller differences are rounding of float64 times.
"""

MAX_SLOWED_PCT = 0.1
"""Default budget of the share controller.

It is the percentage of jobs that may end later than without sharing.
"""

MAX_IDLE_WAKES = 10_000
"""Consecutive wakes, with nothing running and nothing to come, after which a playout ends.

A job that is still pending after 35 days of ticks can never start, because its pool has shrunk
below its width.
"""

MIN_SPEED, MAX_SPEED = 1e-3, 1e3
"""Bounds of a reported speed, relative to the nominal speed. A value outside is more likely a rate
in another unit, such as samples per second."""

MAX_REGIME = 1_000
"""Highest number of a regime, from 0, and largest number of regimes that a job states. No training
changes its batch size that often, and the record of such a job stays below 64 KB if names are
short."""

MAX_ITERATIONS = 10**12
"""Largest number of iterations of a job: 30 years at a thousand a second."""

MAX_CONFIG = 200
"""Largest number of characters in the name of a configuration: the same as for a job's name."""

UNKNOWN_RUN_TIME = 1e12
"""Estimate in seconds for a job whose run time is unknown.

It is longer than every window, so that the job gets no spare start, and finite, so that events can
be JSON.
"""

NEVER = 1e18
"""Virtual start, in seconds, of a job that the baseline never starts.

Finite, so that it can be JSON.
"""

LAS_THRESHOLDS = (3600.0, 36000.0)
"""GPU-seconds after which a job leaves the first and the second of the default LAS queues.

The three queues have jobs of up to one GPU-hour, up to ten, and more. On Philly seven of ten jobs
never leave the first queue, and one of nine reaches the last.
"""

LAS_PROMOTE = 8.0
"""A job is promoted once it has waited eight times as long as it has run.

A lower factor approaches round-robin.
"""

MAX_QUEUES = 16
"""Maximum number of LAS thresholds. With more, neighbouring queues are almost the same."""

LEAST_THRESHOLD = 60.0
"""GPU-seconds, minimum of LAS's first threshold.

Each threshold that a job crosses causes a decision pass, and a promoted job crosses them again;
below a minute these passes would dominate.
"""

LEAST_PROMOTE = 0.1
"""Minimum of LAS's promotion factor. Below it jobs would alternate every few seconds."""

MAX_RESUME_COST = 86400.0
"""Maximum cost of a preemption in seconds. A checkpoint that takes a day to load is useless."""

RECALL = 0.1
"""Default of option `recall`: the largest cost of a stop, as a fraction of a window.

For a window of five minutes a spare job counts as ended if a stop costs it at most half a minute,
for a window of twelve hours if it costs at most 1.2 hours.
"""

MAX_TIME = 1e15
"""Maximum of a time or duration in seconds.

At 1e15 adjacent float64 values are an eighth of a second apart; beyond, adding seconds becomes
inaccurate.
"""

MAX_VALUE = 1e6
"""Maximum value of an end by the deadline.

The usual value is 1000, and a solver with a relative gap of 1e-6 must still see a value of 1.
"""

MAX_STEPS = 16
"""Maximum number of steps of a deadline. Each is a variable of the program that plans leases."""

MAX_JOB_BUDGET = 1000.0
"""Budgets of jobs are between 1/1000 and 1000.

In a market a job with a larger budget would get all GPUs, one with a smaller budget none. A
priority has the same effect.
"""

MAX_SLOWDOWN = 1000.0
"""Maximum factor on the run time on nodes that a job does not prefer. To forbid these
nodes, leave the factor out."""

MAX_ASKS = 64
"""Maximum number of `nck` in one job's STRL: eight sets of nodes with eight values each."""

MAX_ASK_TEXT = 4096
"""Maximum characters of one job's STRL, about 60 for each `nck`."""

MAX_TRIALS = 1000
"""Largest number of trials in one report: a hyper-parameter search has tens, rarely hundreds."""

MAX_POINTS = 256
"""Maximum number of points of a job's demand: enough for each width of the largest elastic jobs."""

MAX_ANSWERS = 64
"""Largest number of answers to programs at one instant of a playout; the next one comes at a tick.

Goals in order of priority take one program each. Without the limit, a policy that asks again at
each answer would stop time if answers take no time.
"""

MAX_REFUSED = 3
"""Number of refusals of one kind for one job in a pass after which the pass ends.

A policy that uses the results tries at most another width or stream. A policy that ignores them
would repeat the same proposal for ever.
"""

MAX_STOPS = 1000
"""Maximum number of stops of one guest. A job that is stopped more often only wastes GPU time."""

MAX_FAILURE = 200
"""Largest number of characters of a policy's exception in messages, so that they fit one line."""
