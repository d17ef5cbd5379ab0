"""Limits of the door, with their reasons."""

MAX_BODY = 2**23
"""Bytes of a request: `MAX_JOBS` jobs of 800 bytes each."""

MAX_VALUE = 2**18
"""Characters of one JSON value that is no batch, and of one job of a batch. The worst value of this
size takes 25 ms to refuse, in which the daemon does nothing else. An environment of 200 variables
with a thousand characters each fits."""

MAX_OBJECTS = 10_000
"""JSON objects in one value: ten times as many as the largest what-if question has."""

PIECE_JOBS = 200
"""Jobs of a batch that are read before others have their turn: two milliseconds."""

PIECE_CHARACTERS = 2**17
"""Characters of a batch that are read before others have their turn."""

SUBMITTED_AT_ONCE = 500
"""Jobs of a batch that are checked and handed on before others have their turn: a few
milliseconds."""

BODY_WITHIN = 10.0
"""Seconds within which a request's body is to be there: who takes longer only holds memory."""

MAX_PROBLEMS = 20
"""Wrong values that one answer names: who sent more has one mistake many times."""

PAGE = 100
"""Jobs or events of a page, if the client does not say."""

MAX_PAGE = 1000
"""Of them at most: some ten milliseconds in which the daemon does nothing else."""

LOOKED_AT = 5000
"""Jobs that are looked at for a page whose filter few pass: some ten milliseconds, as above."""

MAX_SEQ = 2**53
"""Numbers of events and of ended jobs: beyond it JSON's are not exact everywhere."""

RATE = 5000.0
"""Requests a second under one token: more than two cores can serve, so that a script that runs
wild waits for itself and not the daemon for it."""

BURST = 10_000.0
"""Requests at once before that counts: two seconds of them."""

WRONG_RATE = 100.0
"""Requests a second with a wrong token, of all addresses together: what refusing may cost."""

WRONG_BURST = 1000.0
"""The same at once."""

WRONG_EACH = 10.0
"""The same a second from one address: people mistype, guessers do not get far."""

WRONG_AT_ONCE = 100.0
"""The same at once: a dashboard whose token was changed."""

MAX_READERS = 100
"""Clients that follow events at a time: each costs a task and is told everything."""

READERS_EACH = 20
"""Of them under one token: dashboards of a team."""

READERS_KEPT = 20
"""Of them that are operators' alone: who looks why there are too many must get in."""

HEARTBEAT = 15.0
"""Seconds without an event after which a reader is told that the daemon lives: proxies cut what is
silent for half a minute."""

SLOW_READER = 10.0
"""Seconds for which a reader may leave what it was sent unread; it resumes where it stopped."""

NEXT_SHOWN = 10
"""Waiting jobs of each pool that the plan shows."""

NODE_JOBS = 100
"""Jobs that are named with a node."""

LOG_PIECE = 2**18
"""Bytes of what a job wrote in one answer: a screen a hundred times over, read in a millisecond."""

MAX_KEY = 200
"""Characters of an Idempotency-Key: a UUID has 36."""

ADDRESSES = 10_000
"""Addresses of which wrong tokens are counted: some hundred KB."""

DENIALS = 1.0
"""Changes a second, of one token, that are denied and stand in the audit: others are counted."""

DENIALS_AT_ONCE = 100.0
"""The same at once."""

SIGN_OUTS = 1 / 20
"""Times a second that all sessions of one token are ended by it: each is durable, and kept."""

SIGN_OUTS_AT_ONCE = 5.0
"""The same at once."""
