"""JSON lines on stderr, one for each thing worth knowing; how much can be changed at any time."""

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
            "configured", "requeued",
        ),
        logging.INFO,
    ),
}  # fmt: skip
"""What is told of at which level; what each job goes through is for `debug`: thousands a second."""


STDERR = 2
"""Its number: a thread that hangs in `sys.stderr` at the end would make Python abort."""

MOST_WAITING = 10_000
"""Lines that wait for a reader of stderr that is slow: some MB. More are dropped, and counted."""

GOODBYE = 2.0
"""Seconds that a reader has at the end to take what waits."""


class LogWriterThread(logging.Handler):
    """Writes lines in a thread of its own: nothing that decides waits for who reads them.

    A pipe that nobody empties would otherwise hold up the whole daemon.
    """

    def __init__(self, file: int, most: int = MOST_WAITING) -> None:
        """Write to this descriptor; keep so many lines."""
        super().__init__()
        self._file = file
        self._lines: Queue[str] = Queue(most)
        self._dropped = 0
        Thread(target=self._work, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line, or count it as dropped where too many wait. Never waits."""
        try:
            self._lines.put_nowait(record.getMessage())
        except Full:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until all is written, but not for long. `logging` calls it at the end."""
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
            return  # nobody reads any more; the daemon goes on


STRANGE_RATE, STRANGE_AT_ONCE = 1.0, 20.0
"""Lines a second, and at once, of what libraries say by themselves: they repeat what goes wrong for
each time that it does, and a disk is finite."""

STRANGE_LENGTH = 500
"""Characters of such a line: their reprs may be long."""


class LibraryLogHandler(logging.Handler):
    """What libraries say goes the daemon's way: as JSON, aside, and not without end."""

    def __init__(self) -> None:
        """What is a warning, or worse."""
        super().__init__(logging.WARNING)
        self._bucket, self._left_out = TokenBucket(STRANGE_RATE, STRANGE_AT_ONCE), 0

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, or count it."""
        if self._bucket.take():
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        more = {"left_out": left_out} if left_out else {}
        said = record.getMessage()[:STRANGE_LENGTH]
        log().log(record.levelno, said, logger=record.name, exc_info=record.exc_info, **more)


_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Where it went wrong, and not with which values: they may be secrets."""


def begin(level: str) -> None:
    """Log from now on, what is of this level or worse; `logging.getLogger("sia")` holds it."""
    handler = LogWriterThread(STDERR)
    logger = logging.getLogger("sia")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level.upper())
    logging.lastResort = LibraryLogHandler()  # of all loggers that nobody has given a handler
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
    """Log what has happened, durably; notices hold neither commands nor environments."""
    level = LEVELS.get(notice.kind, logging.DEBUG)
    if logging.getLogger("sia").isEnabledFor(level):
        about = {"job": notice.job, "pool": notice.pool, "node": notice.node, **notice.data}
        if notice.kind == "ended":
            del about["why"]  # it may name the command
        said = {key: value for key, value in about.items() if value not in ("", None)}
        log().log(level, notice.kind, seq=notice.seq, **said)


def log() -> structlog.stdlib.BoundLogger:
    """The daemon's."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("sia")
    return logger
