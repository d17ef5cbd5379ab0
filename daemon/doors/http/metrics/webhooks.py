"""Metrics of the webhooks, collected at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from daemon.doors.webhooks.webhooks import Hooks


class HookMetrics(Collector):
    """Lag, dead letters and requests of each webhook."""

    def __init__(self, hooks: Hooks) -> None:
        """Collect from the webhooks."""
        self._hooks = hooks

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registration must not query the webhooks before they are open."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Collect in O(webhooks)."""
        lag = GaugeMetricFamily(
            "sia_webhook_lag_events", "Events after the cursor.", labels=["webhook"]
        )
        dead = GaugeMetricFamily(
            "sia_webhook_dead_letters", "Number of dead letters.", labels=["webhook"]
        )
        made = CounterMetricFamily(
            "sia_webhook_requests", "Webhook requests by outcome.", labels=["webhook", "outcome"]
        )
        for hook in self._hooks:
            name, counts = hook.config.name, hook.counts
            lag.add_metric([name], hook.lag)
            dead.add_metric([name], hook.dead)
            made.add_metric([name, "delivered"], counts.delivered)
            made.add_metric([name, "failed"], counts.failed)
        yield from (lag, dead, made)
