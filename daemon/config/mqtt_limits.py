"""Limits of what goes over MQTT, with their reasons."""

MAX_PAYLOAD = 2**16
"""Bytes of a message that comes in: five hundred jobs with their commands. More belongs on HTTP."""

READ_AT_ONCE = 2**16
"""Bytes of messages that are read before others have their turn: some ten milliseconds where all
that they hold is wrong."""

MAX_PACKET = 2**20
"""Bytes of a packet that a broker may send us (MQTT 5): what is a little too long is refused with
words, what is far too long is not even carried."""

PROTOCOL_PACKET = 2**28 - 1
"""Bytes of any packet (MQTT 5), where the broker names no limit of its own. Of an older broker,
which cannot, it is taken that it has ours."""

OVERHEAD = 16
"""Bytes of a packet beside topic, payload and properties, and a few more."""

REPLY_LINES = 100
"""Jobs of one message of which an event each is told; of the others there is a number."""

MAX_CORRELATION = 256
"""Bytes of correlation data: a UUID has 36."""

MIN_CORRELATION = 16
"""Bytes of those that jobs' ids are made of: a UUID has so many. Shorter ones are counters, which
begin anew with their program, or are those of somebody else in the pool."""

UNACKNOWLEDGED = 1000
"""Messages that have come in and are not durable yet: as many as one step takes."""

WINDOW = 1000
"""Messages that have gone out and that the broker has not confirmed."""

SESSION = 7 * 86400
"""Seconds for which a broker keeps what comes for a daemon that is away: a long weekend."""

TIMEOUT = 10.0
"""Seconds that a broker has to answer anything: what takes longer is no connection any more."""

BACK_OFF = 0.25
"""Seconds within which the first try to connect again falls; twice as many for each later one."""

BACK_OFF_MOST = 8.0
"""Seconds within which any later try falls: a broker that is back is noticed well within 20."""

STEADY = 5.0
"""Seconds after which a connection counts as one that holds, and tries begin anew with short
waits: two who take one session from each other must not do so without rest."""

FAREWELL = 2.0
"""Seconds that a daemon which stops waits for the broker to take its last word."""

STATE_EVERY = 1.0
"""Seconds between two looks at the states of pools."""

CURSOR_EVERY = 1.0
"""Seconds between two notes of how far events were delivered: so much comes twice after a crash."""

GROAN_EVERY = 10.0
"""Seconds between two lines of the log about messages that nobody can be told about."""

BEAT_EVERY = 5.0
"""Seconds between two beats of a manager."""

GONE_AFTER = 15.0
"""Seconds without a beat after which a manager counts as gone: three that did not come."""

RESEND_AFTER = 10.0
"""Seconds after which what a manager has not answered is asked anew."""

SYNC_JOBS = 500
"""Jobs named in one message: 40 KB or so."""
