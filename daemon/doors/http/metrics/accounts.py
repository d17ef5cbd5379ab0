"""Metrics of the pools' accounts, collected at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from daemon.service.service import Service


class AccountMetrics(Collector):
    """What each pool gained and lost by sharing since its account was opened."""

    def __init__(self, service: Service) -> None:
        """Collect from a service."""
        self._service = service

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registration must not query the service before it serves."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Collect in O(pools). Loans count up to their last change, so counters never decrease."""
        jobs = CounterMetricFamily(
            "sia_alone_jobs",
            "Jobs compared with the baseline, by outcome; forgotten: baseline start unknown.",
            labels=["pool", "outcome"],
        )
        seconds = CounterMetricFamily(
            "sia_alone_seconds",
            "Seconds by which jobs started sooner or later than in the baseline.",
            labels=["pool", "outcome"],
        )
        loans = CounterMetricFamily(
            "sia_loan_gpu_seconds",
            "GPU-seconds lent and borrowed, up to the last change of each loan.",
            labels=["pool", "side"],
        )
        renewed = CounterMetricFamily(
            "sia_alone_renewed",
            "Restarts of a pool's account after a defect.",
            labels=["pool"],
        )
        self._service.engine.settle_accounts()
        for pool, account in self._service.book.accounts.items():
            jobs.add_metric([pool, "slowed"], account.slowed)
            jobs.add_metric([pool, "in time"], account.jobs - account.slowed)
            jobs.add_metric([pool, "forgotten"], account.forgotten)
            renewed.add_metric([pool], account.renewed)
            seconds.add_metric([pool, "sooner"], account.gained)
            seconds.add_metric([pool, "later"], account.lost)
            loans.add_metric([pool, "lent"], account.lent)
            loans.add_metric([pool, "borrowed"], account.borrowed)
        yield from (jobs, seconds, loans, renewed)
