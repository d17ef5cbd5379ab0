"""Limits of the daemon, with their reasons."""

MAX_ID = 200
"""Maximum characters of a job id: it is part of file names, which have at most 255 bytes."""

MAX_STARTS = 3
"""Maximum number of attempts of a job with `requeue`. A job that has failed three times is unlikely
to succeed the fourth time."""

GRACE = 30.0
"""Default grace time in seconds, in which a job can save its work before a stop. Kubernetes has the
same default for pods."""

STOPS_PER_JOB = 20
"""Default maximum number of stops of a job. Each stop makes its owner wait, and a policy that stops
a job more often hardly lets it finish."""

MAX_GRACE = 86400.0
"""Maximum grace time in seconds. The job that gets the GPUs waits for this long."""

MAX_PRIORITY = 1000
"""Highest priority of a job; the negative of this is the lowest. Enough levels, and easy to
remember."""

REPORT_EVERY = 1.0
"""Minimum seconds between two progress reports of one job. Each is a journal entry and may cause a
decision pass, and no policy plans at a finer resolution."""

MAX_TIME_LIMIT = 10 * 366 * 86400.0
"""Maximum time limit in seconds: ten years. A greater number is more likely in milliseconds."""

MAX_MAINTENANCE = 1000
"""Maximum number of planned maintenance windows: weekly ones of twenty nodes for a year."""

MAX_WEIGHT = 1000.0
"""Highest weight of a pool: a greater one would not change the order."""

KEEP_ENDED = 10_000
"""Maximum number of ended jobs in memory: about those of the last hours. The journal has all."""

LATE_TURN = 1.0
"""Delay in seconds above which a turn counts as late. The daemon itself needs a few
milliseconds."""

MAX_BATCH = 1000
"""Maximum number of inputs of one step: about 50 ms of work, so that a burst delays other clients
only briefly."""

MAX_ASKED = 500
"""Maximum number of commands of one client in one step. A batch of ten thousand takes several
steps, and other clients are served in between. Half of `MAX_BATCH`, which leaves the other half for
observations."""

MAX_INBOX = 50_000
"""Maximum number of commands that wait for a step: at 5,000 a second, they wait for ten seconds."""

SNAPSHOT_EVERY = 20_000
"""Number of inputs between two snapshots: recovery replays them in about two seconds."""

SNAPSHOT_PART = 2**20
"""Bytes of one part of a snapshot. Commits are made between the parts, so that no commit waits
long."""

SNAPSHOTS_KEPT = 2
"""Number of snapshots kept: the latest, and the one before in case the latest is unusable."""

KEEP_ESTIMATES = 28 * 86400.0
"""Seconds for which estimates are kept. New estimates do not use older ones, and a start reads
all."""

KEEP_RECORDS = 86400.0
"""Seconds for which journal entries older than both snapshots are kept, for inspection."""

KEEP_HISTORY = 400 * 86400.0
"""Seconds for which ended jobs and notices are kept: a year and a month."""

PRUNED_AT_ONCE = 500
"""Number of rows of a table that one commit prunes, or twice the number of added rows if that is
more. This takes about a millisecond, and pruning keeps up with growth."""

NOTICES_LIVE = 10_000
"""Number of notices in memory for readers of the event stream. They read older ones from the
journal."""

NOTICES_PAGE = 500
"""Notices read from the journal in one query."""

PROBE_EVERY = 1.0
"""Seconds between attempts to write after the journal failed."""

PROBE_BYTES = 2**16
"""Bytes written as a probe: if they fit on the disk, so do the next entries. With 1 MiB a disk with
1 MB free again was never found to have room."""

EFFECT_AGAIN = 1.0
"""Seconds until an effect is retried: the backend could not end a job, or lacked a resource to
start one."""

SLEW = 1e-3
"""Rate at which the daemon's clock is slewed towards the wall clock (seconds per second): too
small to matter for run times."""

LAST_EFFECTS = 5.0
"""Seconds that a stopping daemon waits for its backend. The next daemon does the remaining work."""

PRUNE_EVERY = 64
"""Rows added between two checks for rows to prune: a check rarely runs alone."""

READ_AT_ONCE = 1000
"""Entries read from the journal in one query: about a megabyte."""

AUDIT_PAGE = 2**20
"""Approximate characters of records in one audit page: a few milliseconds of the event loop."""

AUDIT_AT_ONCE = 50
"""Maximum audit records read in one query: a page exceeds its size by fewer records than these."""

ASKED_AT_ONCE = 500
"""Ids looked up in one query: SQLite allows at least 999 values."""

POOLS_AT_ONCE = 100
"""Pools whose history one query merges: SQLite allows 500 such parts and 999 values."""

MAX_TOKENS = 1000
"""Maximum number of tokens: one for each person and component of a large site, and few enough to
review."""

TOKEN_REMEMBERED = 30 * 86400.0
"""Seconds for which an expired token is still listed, so that its owner finds out why it fails."""

MAX_BUDGET = 1e9
"""Maximum budget of a pool in GPU-hours or minutes of delay a month: more than any cluster has."""

BUDGETS = {
    "lend_budget_hours": MAX_BUDGET,
    "slowed_budget_pct": 100.0,
    "slowed_budget_minutes": MAX_BUDGET,
}
"""Fields of a pool's budgets, and the highest value of each."""

NO_BUDGET = -1.0
"""The value of a command's field that removes a budget; a field that is None changes nothing."""
