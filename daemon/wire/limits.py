"""Limits of the interfaces, each with its reason."""

MAX_BODY = 2**23
"""Maximum bytes of a request body: `MAX_JOBS` jobs of 800 bytes each."""

MAX_VALUE = 2**18
"""Maximum characters of one JSON value that is not a batch, and of one job of a batch. Rejecting
the worst value of this size blocks the event loop for 15 ms. The limit admits an environment of 200
variables of a thousand characters each."""

MAX_OBJECTS = 10_000
"""Maximum JSON objects in one value, and members of one list or object: ten times the number in the
largest valid what-if request."""

PIECE_JOBS = 200
"""Jobs of a batch decoded before yielding to the event loop: about 2 ms."""

PIECE_CHARACTERS = 2**15
"""Characters of a batch decoded before yielding to the event loop. Parsing STRL of this length
takes at most 30 ms."""

SUBMITTED_AT_ONCE = 500
"""Jobs of a batch checked and submitted before yielding to the event loop: a few
milliseconds."""

STRL_OF_A_JOB = 32
"""Characters of STRL that count as one more job of `SUBMITTED_AT_ONCE`: parsing them takes as
long."""

BODY_WITHIN = 10.0
"""Seconds to receive a request body. Slower clients only occupy memory."""

MAX_PROBLEMS = 20
"""Maximum number of wrong values in one response. Further ones usually repeat the same mistake."""

PAGE = 100
"""Default number of jobs or events of a page."""

MAX_PAGE = 1000
"""Maximum number of jobs or events of a page: about 10 ms on the event loop."""

LOOKED_AT = 5000
"""Maximum jobs examined for a page when few match the filter: about 10 ms on the event loop."""

MAX_POINTS = 500
"""Maximum periods of a time series: as many as a chart shows on a screen, and a few milliseconds
of the event loop."""

MAX_SEQ = 2**53
"""Maximum event or job number: larger integers are not exact in JavaScript."""

RATE = 5000.0
"""Requests per second of one token. More than two cores can serve, so a runaway script is slowed
before it slows the daemon."""

BURST = 10_000.0
"""Burst of requests of one token: two seconds at `RATE`."""

JOB_RATE = 2.0
"""Requests per second of the token of one job. The engine accepts one report a second, and each
refused report also costs a journal entry."""

JOB_BURST = 20.0
"""Burst of requests of the token of one job: each of its processes may report at its start."""

JOBS_WATCHED = 10_000
"""Maximum number of jobs whose requests are counted: no more jobs report at the same time."""

WRONG_RATE = 100.0
"""Requests per second with a wrong token, over all addresses: bounds the cost of refusing them."""

WRONG_BURST = 1000.0
"""Burst of requests with a wrong token, over all addresses."""

WRONG_EACH = 10.0
"""Requests per second with a wrong token from one address: allows typing errors, not guessing."""

WRONG_AT_ONCE = 100.0
"""Burst of wrong tokens from one address: a dashboard whose token was revoked."""

MAX_READERS = 100
"""Maximum concurrent event streams: each costs a task and receives every event."""

READERS_EACH = 20
"""Maximum concurrent event streams of one token: the dashboards of a team."""

READERS_KEPT = 20
"""Event streams reserved for operators, who must get in to find out why there are too many."""

HEARTBEAT = 15.0
"""Seconds without an event after which a stream sends a comment. Proxies commonly close a
connection that is silent for 30 to 60 seconds."""

SLOW_READER = 10.0
"""Seconds that a stream may stay unread before it is closed; the client resumes by event id."""

NEXT_SHOWN = 10
"""Maximum number of pending jobs of each pool shown in the plan."""

NODE_JOBS = 100
"""Maximum number of jobs listed with a node."""

LOG_PIECE = 2**18
"""Maximum bytes of a job's output in one response: 100 screens, read within 1 ms."""

MAX_KEY = 200
"""Maximum characters of an Idempotency-Key; a UUID has 36."""

ADDRESSES = 10_000
"""Maximum addresses for which wrong tokens are counted: some hundred KB."""

DENIALS = 1.0
"""Denied changes per second of one token that are written to the audit. Further ones are only
counted."""

DENIALS_AT_ONCE = 100.0
"""Burst of denied changes of one token written to the audit."""

SIGN_OUTS = 1 / 20
"""Times per second that one token may end all its sessions. Each time is journaled."""

SIGN_OUTS_AT_ONCE = 5.0
"""Burst of the same requests."""
