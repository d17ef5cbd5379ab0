"""JSON lines on stderr, one for each thing worth knowing; how much can be changed at any time."""

from __future__ import annotations

import logging
import sys

import structlog

from daemon.answers import Notice

LEVELS = {
    **dict.fromkeys(("lost", "stray", "refused"), logging.WARNING),
    **dict.fromkeys(
        (
            "pool_changed", "node_out", "node_back", "maintenance_dropped", "lending", "model",
            "configured", "requeued",
        ),
        logging.INFO,
    ),
}  # fmt: skip
"""What is told of at which level; what each job goes through is for `debug`: thousands a second."""


def begin(level: str) -> None:
    """Log from now on, what is of this level or worse; `logging.getLogger("sia")` holds it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("sia")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
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
