"""Limits of the daemon, with their reasons."""

MAX_ID = 200
"""Characters of a job's id: it stands in file names, where 255 bytes are the most."""

MAX_STARTS = 3
"""Attempts of a job that is to be queued again after a failed start or a lost node: what fails
three times fails for a reason that trying again does not mend."""

MAX_PRIORITY = 1000
"""Of a job, either way: enough to order by, and few enough that people remember them."""

MAX_TIME_LIMIT = 10 * 366 * 86400.0
"""Seconds: nothing is limited to ten years; a greater number is more likely in milliseconds."""

MAX_MAINTENANCE = 1000
"""Maintenance windows to come: a year of weekly ones of twenty nodes."""

MAX_WEIGHT = 1000.0
"""Of a pool: more orders it no further in front."""

KEEP_ENDED = 10_000
"""Jobs that have ended and are still in memory, the newest: enough to look at the last hours; all
are in the journal's history."""

MAX_BATCH = 1000
"""Inputs of one step: about 50 ms of work, so that nobody waits for long behind a crowd."""

MAX_ASKED = 500
"""Commands of one client that one step has, at most: a batch of ten thousand takes several steps,
between which others are answered. No more than half of `MAX_BATCH`, which what was seen leaves."""

MAX_INBOX = 50_000
"""Inputs of clients that wait for a step: at 5,000 a second, ten seconds of waiting."""

SNAPSHOT_EVERY = 20_000
"""Inputs between two snapshots: they are replayed in about two seconds at a restart."""

SNAPSHOT_PART = 2**20
"""Bytes of one part of a snapshot: parts are written between records, so that none waits long."""

SNAPSHOTS_KEPT = 2
"""The newest, and the one before should the newest be of no use."""

KEEP_ESTIMATES = 28 * 86400.0
"""Seconds that estimates are kept: the next ones go by no older ones, and a start reads all."""

KEEP_RECORDS = 86400.0
"""Seconds for which records older than both snapshots are kept: to look at what was decided."""

KEEP_HISTORY = 400 * 86400.0
"""Seconds for which ended jobs and notices are kept: a year can be looked at as a whole."""

PRUNED_AT_ONCE = 500
"""Rows of a table that one commit may prune, or twice what was added where that is more: a
millisecond or so, and old rows always go faster than new ones come."""

NOTICES_LIVE = 10_000
"""Notices in memory for those who follow: they read older ones from the journal."""

NOTICES_PAGE = 500
"""Notices read from the journal at a time."""

PROBE_EVERY = 1.0
"""Seconds between two tries to write again where the journal could not."""

PROBE_BYTES = 2**16
"""Written as a try: where so much fits, the next records do. With 1 MiB a disk with 1 MB free again
was never found to have room."""

EFFECT_AGAIN = 1.0
"""Seconds until a backend that could not end a job is told again, or start it where the machine was
short of something for the moment."""

SLEW = 1e-3
"""Seconds a second by which the daemon's clock is led towards the wall clock: what nobody notices
in a job's run time."""

LAST_EFFECTS = 5.0
"""Seconds that a daemon which stops waits for its backend: what is not done then is done by the
next one."""

PRUNE_EVERY = 64
"""Rows added between two looks at what may be pruned: seldom a look of its own."""

READ_AT_ONCE = 1000
"""Records read from the journal at a time: a megabyte or so."""

AUDIT_PAGE = 2**20
"""Characters of records, about, in one answer of the audit: a few milliseconds of the loop."""

AUDIT_AT_ONCE = 50
"""Records of the audit that one query reads: a page is no more than these too long."""

ASKED_AT_ONCE = 500
"""Ids looked up in one query: SQLite takes 999 values at least."""

POOLS_AT_ONCE = 100
"""Pools of which one query merges the history: SQLite takes 500 such parts and 999 values."""

MAX_TOKENS = 1000
"""Tokens at a time: one for each person and part of a large site; few enough to look through."""

TOKEN_REMEMBERED = 30 * 86400.0
"""Seconds for which a token that has expired is still listed: whoever wonders finds out why."""

MAX_BUDGET = 1e9
"""GPU-hours that a pool may lend in a month: more than all GPUs there are would come to."""

NO_BUDGET = -1.0
"""What stands for none in a command, of which what is not given is None."""
