"""Limits of the daemon, with their reasons."""

MAX_ID = 200
"""Characters of a job id: it is part of file names, which have at most 255 bytes."""

MAX_STARTS = 3
"""Attempts of a job with `requeue`: what has failed three times is unlikely to succeed the
fourth."""

GRACE = 30.0
"""Seconds that a job has to save its work when it is told to stop, as pods have by default."""

STOPS_PER_JOB = 20
"""How often a job is stopped at most, if the site says nothing else. Each stop costs its owner a
wait, and a policy that stops a job more often does not let it finish."""

MAX_GRACE = 86400.0
"""Longest grace time in seconds: the job that gets the GPUs waits for as long."""

MAX_PRIORITY = 1000
"""Highest priority of a job, and with a minus the lowest: enough levels, and few enough to
remember."""

REPORT_EVERY = 1.0
"""Seconds between two reports of progress of one job: each is a journal entry and may cause a pass
of the policy, and nobody plans more finely than this."""

MAX_TIME_LIMIT = 10 * 366 * 86400.0
"""Seconds. Nobody limits a job to ten years; a greater number is more likely in milliseconds."""

MAX_MAINTENANCE = 1000
"""Planned maintenance windows: weekly ones of twenty nodes for a year."""

MAX_WEIGHT = 1000.0
"""Highest weight of a pool: a greater one would not change the order."""

KEEP_ENDED = 10_000
"""Ended jobs in memory: enough for the last hours. The journal's history has all."""

LATE_TURN = 1.0
"""Seconds after which a turn counts as late: the daemon acts a few milliseconds after each."""

MAX_BATCH = 1000
"""Inputs of one step: about 50 ms of work, so that a burst delays nobody for long."""

MAX_ASKED = 500
"""Commands of one client that one step has, at most: a batch of ten thousand takes several steps,
between which others are answered. No more than half of `MAX_BATCH`, which what was seen leaves."""

MAX_INBOX = 50_000
"""Commands that wait for a step: at 5,000 a second, ten seconds of waiting."""

SNAPSHOT_EVERY = 20_000
"""Inputs between two snapshots: recovery replays them in about two seconds."""

SNAPSHOT_PART = 2**20
"""Bytes of one part of a snapshot. Parts are written between commits, so that none waits long."""

SNAPSHOTS_KEPT = 2
"""Snapshots to keep: the latest, and the one before in case the latest is unusable."""

KEEP_ESTIMATES = 28 * 86400.0
"""Seconds to keep estimates: new estimates use none older, and a start reads all."""

KEEP_RECORDS = 86400.0
"""Seconds to keep journal entries older than both snapshots, for inspection."""

KEEP_HISTORY = 400 * 86400.0
"""Seconds to keep ended jobs and notices: a whole year and a month."""

PRUNED_AT_ONCE = 500
"""Rows of a table that one commit prunes; twice the rows added if that is more. It takes about a
millisecond, and pruning keeps up with growth."""

NOTICES_LIVE = 10_000
"""Notices in memory for followers of the event stream. They read older ones from the journal."""

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
"""Seconds that a stopping daemon waits for its backend. The next daemon does what is left."""

PRUNE_EVERY = 64
"""Rows added between two checks for rows to prune: a check rarely runs alone."""

READ_AT_ONCE = 1000
"""Entries read from the journal in one query: about a megabyte."""

AUDIT_PAGE = 2**20
"""Approximate characters of records in one audit page: a few milliseconds of the event loop."""

AUDIT_AT_ONCE = 50
"""Audit records read in one query: a page exceeds its size by fewer than these."""

ASKED_AT_ONCE = 500
"""Ids looked up in one query: SQLite allows at least 999 values."""

POOLS_AT_ONCE = 100
"""Pools whose history one query merges: SQLite allows 500 such parts and 999 values."""

MAX_TOKENS = 1000
"""Tokens: one for each person and component of a large site, and few enough to review."""

TOKEN_REMEMBERED = 30 * 86400.0
"""Seconds for which an expired token is still listed, so that its owner finds out why it fails."""

MAX_BUDGET = 1e9
"""Highest budget in GPU-hours a month: more than any cluster has."""

NO_BUDGET = -1.0
"""The value of a command's field that removes a budget; a field that is None changes nothing."""
