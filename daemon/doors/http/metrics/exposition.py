"""Metrics of the engine and of HTTP: counters are updated by events, gauges at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from daemon.doors.views.resources import own_loans, unplaced
from daemon.engine.engine import Step
from daemon.forecasts.load_errors import EndedWindow, LoadErrors
from daemon.model.access import public_notice
from daemon.model.account import ShadowState
from daemon.model.book import Book
from daemon.model.inputs import Input
from daemon.model.job import JobPhase
from daemon.model.outputs import Notice
from daemon.runtime.fence import Fence
from daemon.runtime.logs import log
from daemon.service.observer import Observer
from sia.decisions import (
    DedicateJob,
    MoveLoan,
    PreemptJob,
    ProposalRefused,
    ResizeJob,
    StartJob,
)
from sia.events import Event, ForecastUpdated
from sia.limits import UNKNOWN_RUN_TIME

if TYPE_CHECKING:
    from daemon.service.service import Service

QUICK = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Buckets of seconds, from the cost of one job to a delay that clients notice."""

WAITS = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0, 604800.0)
"""Buckets of waiting times in seconds, up to a week."""

RATIOS = (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0)
"""Buckets of actual / estimated run time; 1 is a correct estimate."""


class PrometheusMetrics(Observer):
    """Observer that counts steps, decisions, events and requests.

    Attributes:
        window_ended: Called with each window of load forecasts that has ended.
    """

    def __init__(self) -> None:
        """Create the counters in a registry of their own."""
        self.registry = registry = CollectorRegistry()
        decisions = Counter("sia_decisions", "Decisions by kind.", ["kind"], registry=registry)
        events = Counter("sia_events", "Events by kind.", ["kind"], registry=registry)
        self._decision, self._event = cache(decisions.labels), cache(events.labels)
        self._pass = Histogram(
            "sia_pass_seconds", "Duration of one engine step.", buckets=QUICK, registry=registry
        )
        self._commit = Histogram(
            "sia_commit_seconds", "Duration of one commit.", buckets=QUICK, registry=registry
        )
        self._pause = Histogram(
            "sia_aside_pause_seconds",
            "Time that the event loop is blocked by a fork.",
            buckets=QUICK,
            registry=registry,
        )
        self._inputs = Counter("sia_inputs", "Committed inputs.", registry=registry)
        self._failures = Counter("sia_commit_failures", "Failed commits.", registry=registry)
        self._defects = Counter(
            "sia_defects",
            "Internal errors: inputs skipped, forecasts lost, counters wrong.",
            registry=registry,
        )
        self._ratio = Histogram(
            "sia_run_time_ratio",
            "Actual / estimated run time of ended jobs.",
            buckets=RATIOS,
            registry=registry,
        )
        self._loads = Counter(
            "sia_load_forecasts",
            "Load forecasts whose window has passed, by outcome.",
            ["window", "outcome"],
            registry=registry,
        )
        self._load_gpus = Counter(
            "sia_load_missed_gpus",
            "GPUs of new load above the forecast.",
            ["window"],
            registry=registry,
        )
        self._stops = {
            key: Counter(f"sia_{name}", about, ["pool"], registry=registry)
            for key, (name, about) in STOPS.items()
        }
        self._service: Service | None = None
        self._events_made: Sequence[Event] = ()
        self._errors: LoadErrors | None = None
        self.window_ended: Callable[[EndedWindow], object] = lambda _: None
        self._requests = Counter(
            "sia_http_requests", "HTTP requests.", ["operation", "status"], registry=registry
        )
        self._children: dict[tuple[str, int], Counter] = {}

    def stepped(self, seconds: float, inputs: Sequence[Input], step: Step) -> None:
        """Count a step. O(decisions + notices + ended jobs)."""
        self._pass.observe(seconds)
        self._events_made = step.events
        for decision in step.decisions:
            kind = type(decision)
            if kind in COUNTED:
                self._decision(kind.__name__).inc()
        for notice in step.notices:
            if (public := public_notice(notice)) is not None:
                self._event(public.kind).inc()
            if notice.kind in ("stopped", "stop_forced"):
                self._count_stop(notice)
        for record in step.over:
            known = record.run_time < UNKNOWN_RUN_TIME
            if known and record.started is not None and record.ended is not None:
                ran = record.ran + record.ended - record.started
                self._ratio.observe(ran / max(record.run_time, 1e-6))

    def _count_stop(self, notice: Notice) -> None:
        if notice.kind == "stop_forced":
            self._stops["forced"].labels(notice.pool).inc()
            return
        self._stops["stops"].labels(notice.pool).inc()
        self._stops["took"].labels(notice.pool).inc(notice.data["took"])
        self._stops["lost"].labels(notice.pool).inc(notice.data["lost"])

    def committed(self, seconds: float, inputs: int) -> None:
        """Count a commit, and compare load forecasts with the step's events."""
        self._commit.observe(seconds)
        self._inputs.inc(inputs)
        if self._errors is None:
            self._compare()
            return
        for window, covered, missed, gpus in self._errors.hear(self._events_made):
            label = f"{window:g}"
            self._loads.labels(label, "covered").inc(covered)
            self._loads.labels(label, "missed").inc(missed)
            self._load_gpus.labels(label).inc(gpus)

    def _compare(self) -> None:
        """Start to compare load forecasts with loads if this step has the first forecast."""
        begun = next((e.time for e in self._events_made if type(e) is ForecastUpdated), None)
        if begun is None or self._service is None:
            return
        state = self._service.engine.core.state
        loads = {name: pool.load for name, pool in state.pools.items()}
        width = None if state.places is None else state.places.gpus
        self._errors = LoadErrors(begun, state.options.windows, loads, width, self._window_over)

    def _window_over(self, ended: EndedWindow, _: int) -> None:
        self.window_ended(ended)

    def failed(self, why: str) -> None:
        """Count and log a failed commit."""
        self._failures.inc()
        log().error("journal write failed; commands are refused until it succeeds", why=why)

    def broke(self, error: str, inputs: Sequence[Input]) -> None:
        """Count and log inputs that the engine skipped because of a defect."""
        self._defects.inc()
        kinds = sorted({type(each).__name__ for each in inputs})
        log().error("inputs were skipped; please report this", error=error, inputs=kinds)

    def blind(self, why: str) -> None:
        """Count and log that there are no forecasts."""
        self._defects.inc()
        log().error("forecasts failed and will be retried; please report this", why=why)

    def paused(self, seconds: float) -> None:
        """Record how long a fork blocked the event loop."""
        self._pause.observe(seconds)

    def miscounted(self, error: str) -> None:
        """Count and log a defect of the derived counters."""
        self._defects.inc()
        log().error("a counter is wrong from now on; please report this", error=error)

    def asked(self, operation: str, status: int) -> None:
        """Count an HTTP request. O(1)."""
        child = self._children.get((operation, status))
        if child is None:
            child = self._requests.labels(operation, str(status))
            self._children[operation, status] = child
        child.inc()

    def watch(self, service: Service) -> None:
        """Register the gauges of a service."""
        self._service = service
        self.registry.register(_Gauges(service))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format. O(pools + jobs)."""
        return generate_latest(self.registry)


COUNTED = frozenset((StartJob, PreemptJob, ResizeJob, DedicateJob, MoveLoan, ProposalRefused))
"""Decisions that are counted by kind."""

STOPS = {
    "stops": ("stops", "Stops of jobs that start again later, by pool."),
    "forced": ("stops_forced", "Stops in which a job exceeded its grace time."),
    "took": ("stop_seconds", "Seconds from the order to stop until the job was gone."),
    "lost": ("stop_lost_seconds", "Seconds of work lost by stops."),
}
"""Counters of stops: name and description."""


class _Gauges(Collector):
    """Gauges, collected at each scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registration must not query the service before it serves."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Collect GPUs by use, jobs by phase, loans, component health and lag. O(pools + jobs)."""
        service = self._service
        state = service.engine.core.state
        gpus = GaugeMetricFamily("sia_pool_gpus", "GPUs of a pool by use.", labels=["pool", "use"])
        jobs = GaugeMetricFamily("sia_pool_waiting_jobs", "Pending jobs.", labels=["pool"])
        lent, widths = 0, unplaced(service.book)
        for name, pool in state.pools.items():
            own = own_loans(pool)
            lent += pool.lent - own
            uses = {
                "quota": pool.quota,
                "dedicated": pool.dedicated,
                "lent": pool.lent - own,
                "borrowed": pool.spare - own,
                "idle": max(0, pool.unused),
                "waiting": pool.pending_width + sum(widths.get(name, ())),
            }
            for use, count in uses.items():
                gpus.add_metric([name, use], count)
            held = len(service.book.pools[name].waiting) + len(widths.get(name, ()))
            jobs.add_metric([name], len(pool.pending) + len(pool.out_of_order) + held)
        parts = GaugeMetricFamily("sia_part_ok", "Health of a component.", labels=["part"])
        for part in service.parts.all():
            parts.add_metric([part.name], float(part.ok))
        stopped = GaugeMetricFamily(
            "sia_pool_kept", "Pools that do not lend, by reason.", labels=["pool", "reason"]
        )
        for name, record in service.book.pools.items():
            for reason in record.kept:
                stopped.add_metric([name, reason], 1.0)
        yield from (gpus, jobs, parts, _would(service.book.shadow), stopped)
        status = service.status()
        running = len(state.jobs) - state.waiting - len(service.book.seatless)
        now, since = service.clock.now(), _turns_since(service.book)
        jobs_there = service.book.jobs
        stopping = sum(jobs_there[i].phase is JobPhase.STOPPING for i in service.book.leaving)
        lag = max(0.0, now - status.last_commit) if status.waiting else 0.0
        for name, about, value in (
            ("sia_running_jobs", "Jobs placed on GPUs.", running),
            ("sia_starting_jobs", "Jobs started but not running yet.", len(since)),
            (
                "sia_starting_longest_seconds",
                "Longest time since the start of a job that is not running yet.",
                max(0.0, now - min(since, default=now)),
            ),
            ("sia_stopping_jobs", "Jobs that are being stopped.", stopping),
            ("sia_lent_gpus", "GPUs lent to jobs of other pools.", lent),
            ("sia_lending", "Whether lending is on.", service.book.lending),
            ("sia_ready", "Whether submissions are accepted.", service.ready),
            ("sia_leader", "Whether this daemon is the leader.", _leads(service)),
            ("sia_epoch", "Epoch of the lease.", service.fence.epoch),
            ("sia_journal_lag_seconds", "Time since the last commit if inputs wait, else 0.", lag),
        ):
            yield GaugeMetricFamily(name, about, value=float(value))


def _turns_since(book: Book) -> list[float]:
    """Return the start times of jobs that do not run yet. O(jobs)."""
    starting = (r for r in book.jobs.values() if r.phase is JobPhase.STARTING)
    return [record.decided for record in starting if record.decided is not None]


def _leads(service: Service) -> bool:
    """Return whether this daemon holds its leases: the journal's and the backend's."""
    own: Fence | None = getattr(service.backend, "fence", None)
    return service.fence.holds() and (own is None or own.holds())


def _would(shadow: ShadowState | None) -> Metric:
    """Collect the GPU-seconds that pools would have lent in shadow mode."""
    found = GaugeMetricFamily(
        "sia_shadow_lent_gpu_seconds",
        "GPU-seconds that shadow lending would have lent, latest period.",
        labels=["pool"],
    )
    for pool, sums in ({} if shadow is None else shadow.lent).items():
        found.add_metric([pool], sum(sums.values()))
    return found
