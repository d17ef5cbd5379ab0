"""`/metrics` of estimates, looked at when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daemon.answers.estimates.calibration import HORIZONS

if TYPE_CHECKING:
    from daemon.answers.estimates.estimator import EtaService

NAMES = ("0.5", "0.9")


class EtaMetrics(Collector):
    """How true estimates were, by pool and horizon."""

    def __init__(self, eta: EtaService) -> None:
        """Of these."""
        self._eta = eta

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked of them before they are there."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """O(pools · horizons) where jobs were estimated."""
        labels = ["pool", "what", "horizon"]
        judged = CounterMetricFamily(
            "sia_estimates", "Estimates by whether they held.",
            labels=[*labels, "quantile", "outcome"],
        )  # fmt: skip
        error = GaugeMetricFamily(
            "sia_estimate_error_seconds", "Median distance from p50, of the newest.", labels=labels
        )
        pred_err = GaugeMetricFamily(
            "sia_estimate_pred_err", "Median Pred_err (PCS) of ends, of the newest.", labels=labels
        )
        for (what, pool, number), tally in sorted(self._eta.heard.calibration.tallies.items()):
            edge = f"{HORIZONS[number]:g}" if number < len(HORIZONS) else "beyond"
            key = [pool, what, edge]
            for share, name in enumerate(NAMES):
                hits = tally.covered[share]
                judged.add_metric([*key, name, "covered"], hits)
                judged.add_metric([*key, name, "missed"], tally.judged[share] - hits)
            if tally.errors:
                error.add_metric(key, sorted(tally.errors)[len(tally.errors) // 2])
            if tally.pred_errors:
                pred_err.add_metric(key, sorted(tally.pred_errors)[len(tally.pred_errors) // 2])
        played, pace = self._eta.outlook, self._eta.pace
        yield from (judged, error, pred_err)
        yield CounterMetricFamily(
            "sia_estimates_failures", "Playouts that took too long or were ended.",
            value=pace.failures,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "sia_estimates_worlds", "Worlds that the next playout has.", value=pace.worlds
        )
        yield GaugeMetricFamily(
            "sia_estimates_wait_seconds", "Between two playouts, at least.", value=pace.wait
        )
        if played is not None:
            yield GaugeMetricFamily(
                "sia_estimates_played_time_seconds", "When the present was last played forward.",
                value=played.now,
            )  # fmt: skip
