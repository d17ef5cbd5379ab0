"""`/metrics` of webhooks, looked at when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from daemon.doors.webhooks.webhooks import Hooks


class HookMetrics(Collector):
    """How far behind each is, and what came of it."""

    def __init__(self, hooks: Hooks) -> None:
        """Of these."""
        self._hooks = hooks

    def describe(self) -> Iterator[Metric]:
        """Nothing is asked of them before they are open."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """O(1) for each."""
        lag = GaugeMetricFamily(
            "sia_webhook_lag_events", "Events that it has not come to yet.", labels=["webhook"]
        )
        dead = GaugeMetricFamily(
            "sia_webhook_dead_letters", "Deliveries given up and kept.", labels=["webhook"]
        )
        made = CounterMetricFamily(
            "sia_webhook_requests", "Requests by outcome.", labels=["webhook", "outcome"]
        )
        for hook in self._hooks:
            name, counts = hook.config.name, hook.counts
            lag.add_metric([name], hook.lag)
            dead.add_metric([name], hook.dead)
            made.add_metric([name, "delivered"], counts.delivered)
            made.add_metric([name, "failed"], counts.failed)
        yield from (lag, dead, made)
