"""Metrics of the estimates, collected at each scrape."""

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
    """Accuracy of the estimates by pool and horizon, and the state of the simulations."""

    def __init__(self, eta: EtaService) -> None:
        """Collect from an estimate service."""
        self._eta = eta

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registration must not query the service before it serves."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Collect in O(pools · horizons)."""
        labels = ["pool", "what", "horizon"]
        judged = CounterMetricFamily(
            "sia_estimates", "Estimates by whether the event came by the stated quantile.",
            labels=[*labels, "quantile", "outcome"],
        )  # fmt: skip
        error = GaugeMetricFamily(
            "sia_estimate_error_seconds", "Median distance to p50, newest estimates.", labels=labels
        )
        pred_err = GaugeMetricFamily(
            "sia_estimate_pred_err",
            "Median Pred_err (PCS) of ends, newest estimates.",
            labels=labels,
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
            "sia_estimates_failures", "Simulations that took too long or were killed.",
            value=pace.failures,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "sia_estimates_worlds",
            "Number of sampled futures in the next simulation.",
            value=pace.worlds,
        )
        yield GaugeMetricFamily(
            "sia_estimates_wait_seconds", "Minimum time between simulations.", value=pace.wait
        )
        if played is not None:
            yield GaugeMetricFamily(
                "sia_estimates_played_time_seconds", "Time of the last simulation.",
                value=played.now,
            )  # fmt: skip
