"""JSON lines on stderr, one for each thing worth knowing; how much can be changed at any time."""

from __future__ import annotations

import logging
import sys

import structlog


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


def log() -> structlog.stdlib.BoundLogger:
    """The daemon's."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("sia")
    return logger
