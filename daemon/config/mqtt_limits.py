"""Limits of MQTT messages and connections, with their reasons."""

MAX_PAYLOAD = 2**16
"""Maximum bytes of an incoming message: about 500 jobs with their commands. Larger requests need
HTTP."""

READ_AT_ONCE = 2**16
"""Bytes of messages that the daemon reads before other tasks run: about 10 ms if every message is
invalid."""

MAX_PACKET = 2**20
"""Maximum bytes of a packet that the broker may send (MQTT 5). The daemon refuses a message between
`MAX_PAYLOAD` and this limit with an error; the broker does not deliver a larger one."""

PROTOCOL_PACKET = 2**28 - 1
"""Maximum bytes of a packet in MQTT 5, for a broker that announces no limit. A broker of an older
version cannot announce one; the daemon assumes `MAX_PACKET` for it."""

OVERHEAD = 16
"""Bytes of a packet in addition to topic, payload and properties, rounded up."""

REPLY_LINES = 100
"""Maximum number of jobs of a message that the reply lists one by one; it only counts further
jobs."""

MAX_CORRELATION = 256
"""Maximum bytes of correlation data: a UUID has 36."""

MIN_CORRELATION = 16
"""Minimum bytes of correlation data from which the daemon derives job ids: the length of a UUID.
Shorter data is usually a counter, which restarts with its program or equals another client's."""

UNACKNOWLEDGED = 1000
"""Maximum number of received messages that are not durable yet: as many as one step accepts."""

WINDOW = 1000
"""Maximum number of sent messages that the broker has not acknowledged."""

SESSION = 7 * 86400
"""Seconds for which the broker keeps the session of a disconnected daemon: more than a long
weekend."""

TIMEOUT = 10.0
"""Maximum seconds for an answer of the broker. After that the daemon treats the connection as
lost."""

BACK_OFF = 0.25
"""Maximum delay of the first reconnection attempt, in seconds; it doubles with each attempt."""

BACK_OFF_MOST = 8.0
"""Maximum delay of any attempt, in seconds: the daemon reconnects well within 20 s."""

STEADY = 5.0
"""Seconds after which a connection counts as stable and the delays start from `BACK_OFF` again.
Two clients with the same client id disconnect each other; without this they would do so in a tight
loop."""

FAREWELL = 2.0
"""Maximum seconds that a stopping daemon waits for the broker to accept its last message."""

STATE_EVERY = 1.0
"""Minimum seconds between two publications of pool states."""

CURSOR_EVERY = 1.0
"""Seconds between two writes of the event cursor; after a crash, events since then are repeated."""

GROAN_EVERY = 10.0
"""Minimum seconds between two log lines about invalid messages whose senders cannot be answered."""

BEAT_EVERY = 5.0
"""Seconds between two heartbeats of a manager."""

GONE_AFTER = 15.0
"""Seconds without a heartbeat after which a manager counts as lost: three missed heartbeats."""

RESEND_AFTER = 10.0
"""Seconds after which the daemon repeats an unanswered request to a manager."""

SYNC_JOBS = 500
"""Maximum number of jobs listed in one message, about 40 KB."""
