"""No forecast of load: a policy then lends as if no job would arrive."""

from __future__ import annotations

from sia.forecasts import Loads, PredictorContext


class NoLoads(Loads):
    """Stands for the absence of a forecast; it is never built."""

    summary = "no load was foreseen"
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> None:
        """Return None: nothing is predicted."""
