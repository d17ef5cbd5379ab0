"""Estimates, as the wire has them."""

from __future__ import annotations

from daemon.insight.calibration import Given, Said
from daemon.schemas_eta import Estimate, Moment


def estimate_view(given: Given) -> Estimate:
    """An estimate as it is shown."""
    start = None if given.start is None else _moment(given.start)
    by = "playout" if given.by == "playout" else "queue"
    return Estimate(given.made, by, _moment(given.end), start)  # type: ignore[arg-type]


def _moment(said: Said) -> Moment:
    return Moment(said.p50, said.p90, said.mean)
