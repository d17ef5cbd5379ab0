"""Limits of webhooks, with their reasons."""

MAX_HOOKS = 32
"""Webhooks of a daemon: each costs a task, a connection and reads of the journal."""

BATCH = 100
"""Events of one delivery: a receiver that answers in 50 ms keeps up with 2,000 a second."""

MAX_BATCH = 1000
"""The most that a configuration may ask for."""

BODY = 2**18
"""Bytes after which a delivery takes no further event: proxies often refuse a megabyte."""

ANSWER_WITHIN = 10.0
"""Seconds that a receiver has for its answer, if the configuration says nothing else."""

LAST_ANSWERS = 2.0
"""Seconds that a daemon which stops waits for answers under way: others come twice."""

TRIAL_WITHIN = 20.0
"""Seconds that a trial waits at most: the operator's command waits half a minute."""

MAX_ANSWER = 2**16
"""Bytes of an answer's body that are read, only to use its connection again."""

FIRST_PAUSE = 0.5
"""Seconds: the most that is waited after the first failure; it doubles with each."""

LONGEST_PAUSE = 15.0
"""Seconds: the most that is waited at all, so that a receiver that is back hears of it soon."""

LONGEST_WISH = 300.0
"""Seconds that a receiver can ask for by Retry-After: a mistake in it must not stop a hook."""

REFUSALS = 10
"""Answers that refuse a delivery (4xx) until it is given up: about half a minute, in which a
receiver that is just being changed is well again."""

GIVE_UP = 86400.0
"""Seconds for which a delivery that fails otherwise is tried: a night and who looks into it."""

TROUBLE_AFTER = 2
"""Failures in a row after which a hook is not well: one alone is a connection that was closed."""

MOST_DEAD = 1000
"""Dead letters of a hook, after which it waits for somebody: what happens waits in the journal."""

DEAD_PAGE = 20
"""Dead letters of one answer, if the client does not say: each has up to `BATCH` events."""

SAVE_EVERY = 1.0
"""Seconds between two times that the hooks' places are made durable, all together: a delivery by
itself would cost a sync, and what was delivered since comes twice after a crash."""

LEAST_SECRET = 16
"""Bytes of a secret: fewer could be guessed by who sees a signed request."""

MOST_SECRETS = 2
"""Lines of a secret file: the secret, and while it is changed the one before."""

MAX_SECRET_FILE = 4096
"""Bytes: a longer file is another one."""
