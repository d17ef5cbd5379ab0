"""Structured logging: JSON lines on stderr, with a level that can be changed at run time."""

from __future__ import annotations

import logging
import os
from queue import Full, Queue
from threading import Thread

import structlog

from daemon.model.outputs import Notice
from daemon.runtime.rate_limit import TokenBucket

LEVELS = {
    **dict.fromkeys(("account_renewed", "lost", "stray", "refused"), logging.WARNING),
    **dict.fromkeys(
        (
            "pool_changed", "node_out", "node_back", "maintenance_dropped", "lending", "model",
            "policy", "configured", "requeued",
        ),
        logging.INFO,
    ),
}  # fmt: skip
"""Levels of notices. All other notices, such as the phases of each job, are `debug`: there may be
thousands a second."""


STDERR = 2
"""File descriptor of stderr: a thread that blocks in `sys.stderr` at exit would make Python
abort."""

MOST_WAITING = 10_000
"""Lines queued for a slow reader of stderr: a few MB. Further lines are dropped and counted."""

GOODBYE = 2.0
"""Seconds that the reader of stderr has at exit to take queued lines."""


class LogWriterThread(logging.Handler):
    """Writes log lines on its own thread, so that a blocked pipe cannot block the daemon."""

    def __init__(self, file: int, most: int = MOST_WAITING) -> None:
        """Write to the descriptor `file` and queue at most `most` lines."""
        super().__init__()
        self._file = file
        self._lines: Queue[str] = Queue(most)
        self._dropped = 0
        Thread(target=self._work, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it as dropped if the queue is full. Does not block."""
        try:
            self._lines.put_nowait(record.getMessage())
        except Full:
            self._dropped += 1

    def flush(self) -> None:
        """Wait up to `GOODBYE` seconds until all lines are written. `logging` calls it at exit."""
        with self._lines.all_tasks_done:
            self._lines.all_tasks_done.wait_for(
                lambda: not self._lines.unfinished_tasks, timeout=GOODBYE
            )

    def _work(self) -> None:
        while True:
            line = self._lines.get()
            self._write(line)
            self.acquire()
            dropped, self._dropped = self._dropped, 0
            self.release()
            if dropped:
                self._write(f'{{"event": "log lines were dropped", "lines": {dropped}}}')
            self._lines.task_done()

    def _write(self, line: str) -> None:
        rest = memoryview(f"{line}\n".encode(errors="backslashreplace"))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            return  # the reader has gone, and the daemon continues


STRANGE_RATE, STRANGE_AT_ONCE = 1.0, 20.0
"""Rate and burst of lines from libraries, which may repeat an error without end and fill a disk."""

STRANGE_LENGTH = 500
"""Maximum characters of a line of a library."""


class LibraryLogHandler(logging.Handler):
    """Logs warnings of libraries as JSON, rate limited."""

    def __init__(self) -> None:
        """Handle warnings and errors."""
        super().__init__(logging.WARNING)
        self._bucket, self._left_out = TokenBucket(STRANGE_RATE, STRANGE_AT_ONCE), 0

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line, or count it as left out."""
        if self._bucket.take():
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more = {"left_out": left_out} if left_out else {}
        message = record.getMessage()[:STRANGE_LENGTH]
        log().log(record.levelno, message, logger=record.name, exc_info=record.exc_info, **more)


_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Tracebacks without local variables, which may hold secrets."""


def begin(level: str) -> None:
    """Configure logging at `level`; change it later on `logging.getLogger("sia")`."""
    handler = LogWriterThread(STDERR)
    logger = logging.getLogger("sia")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level.upper())
    logging.lastResort = LibraryLogHandler()  # for loggers without a handler
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(_TRACEBACKS),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def tell(notice: Notice) -> None:
    """Log a durable notice. Notices contain neither commands nor environments."""
    level = LEVELS.get(notice.kind, logging.DEBUG)
    if logging.getLogger("sia").isEnabledFor(level):
        about = {"job": notice.job, "pool": notice.pool, "node": notice.node, **notice.data}
        if notice.kind == "ended":
            del about["why"]  # may contain the command line
        fields = {key: value for key, value in about.items() if value not in ("", None)}
        log().log(level, notice.kind, seq=notice.seq, **fields)


def log() -> structlog.stdlib.BoundLogger:
    """Return the daemon's logger."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("sia")
    return logger
