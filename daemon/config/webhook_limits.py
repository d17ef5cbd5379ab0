"""Limits of webhooks, with their reasons."""

MAX_HOOKS = 32
"""Maximum number of webhooks of a daemon; each needs a task, a connection and reads of the
journal."""

BATCH = 100
"""Default maximum number of events of a delivery. A receiver that answers in 50 ms then gets 2,000
events per second."""

MAX_BATCH = 1000
"""Upper bound of `webhook.batch`."""

BODY = 2**18
"""Bytes after which a delivery takes no further event; proxies often reject bodies of 1 MB."""

ANSWER_WITHIN = 10.0
"""Default of `webhook.timeout`, in seconds."""

LAST_ANSWERS = 2.0
"""Maximum seconds that a stopping daemon waits for open deliveries; its next start sends the
others."""

TRIAL_WITHIN = 20.0
"""Timeout of a test delivery in seconds; the operator's command itself waits 30 s."""

MAX_ANSWER = 2**16
"""Maximum bytes of a response body that are read. Reading the body lets the connection be
reused."""

FIRST_PAUSE = 0.5
"""Maximum delay after the first failure, in seconds; it doubles with each failure."""

LONGEST_PAUSE = 15.0
"""Maximum delay after any failure, in seconds, so that a receiver that recovers gets events
soon."""

LONGEST_WISH = 300.0
"""Maximum Retry-After that is honoured, in seconds: a wrong header must not stop a webhook."""

REFUSALS = 10
"""Default number of 4xx responses after which a delivery is given up: about 30 s, enough for the
redeployment of a receiver."""

GIVE_UP = 86400.0
"""Default seconds for which a delivery with other failures is retried: a day, so that failures of a
night can be repaired."""

TROUBLE_AFTER = 2
"""Number of consecutive failures after which a webhook is unhealthy. A single failure is often an
idle connection that was closed."""

MOST_DEAD = 1000
"""Number of dead letters at which a webhook stops until an operator acts; events stay in the
journal."""

DEAD_PAGE = 20
"""Default page size of dead letters; each has up to `BATCH` events."""

SAVE_EVERY = 1.0
"""Seconds between two writes of all cursors. A write per delivery would cost a disk sync each;
after a crash, deliveries since the last write are repeated."""

LEAST_SECRET = 16
"""Minimum bytes of a secret: a shorter one could be guessed from a signed request."""

MOST_SECRETS = 2
"""Maximum number of secrets in a secret file: the current one and, during a rotation, the previous
one."""

MAX_SECRET_FILE = 4096
"""Maximum bytes of a secret file; a longer file is not a secret file."""
