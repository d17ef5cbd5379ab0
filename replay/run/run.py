"""Replay one trace under several policies, each compared with the FCFS baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from cells.cells import Cells
from cells.layout.spec import Spec
from predictors.catalog import Choice, loads_class, parse, run_times_class
from predictors.loads.rounded import RoundedLoads, rounded
from replay.logs.past import PastJobs, warm_up
from replay.logs.preemptible import PreemptibleShare
from replay.logs.progress import progress_of
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.closed_loop import ClosedLoop
from replay.run.fluid import fluid_ends, fluid_schedule
from replay.run.predictions import ForetellingCore
from replay.run.predictors import guarded, loads_of, run_times_of
from replay.run.schedule import ClosedLoopLog, Recorder, Result, Schedule
from replay.run.solving import ReplaySolver
from sia import Core
from sia.console.errors import UserError
from sia.contract.labels import name_of
from sia.contract.policy import Policy
from sia.core.playout import Arrival, no_solver, play
from sia.events import FutureRevealed, JobProgressed, PoolChanged
from sia.forecasts import Loads, PredictorContext, RunTimes
from sia.limits import NEVER, RECENT, UNKNOWN_RUN_TIME
from sia.model import FutureJob, GpuNode, Options
from sia.policies import load, make
from sia.policies.shared.elastic import size_of
from sia.state.places import Places
from sia.state.speeds import SpeedRow
from sia.wording import counted

if TYPE_CHECKING:
    from predictors.learning.model import Model

BASELINE = "fcfs"

ReplayProgress = Callable[[str, int, int], None]
"""Called from time to time with a policy's label, the number of ended jobs, and of all jobs."""

PROGRESS_EVERY = 0.25
"""Seconds between two progress calls. A call comes between two instants, however few there are."""


NO_PARAMS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


class Settings(NamedTuple):
    """The settings of a replay. Jobs submitted before second `warmup` are not measured.

    `policies` are labels: the name of a policy, which uses the predictors set here, or a name with
    its own predictors, like `sia@peaks:0.95+survival` (`predictors.catalog`). `model` is the model
    of the forecast `learned`. With `cells`, jobs have a placement.
    `preemptible` is the share of jobs that were marked preemptible, if any. `params` are options by
    name of a policy, which labels may replace.
    """

    policies: Sequence[str]
    forecast: str = "perfect"
    durations: str = "perfect"
    options: Options = Options()
    warmup: float = 0.0
    seed: int = 0
    recent: int = RECENT
    closed_loop: bool = False
    load_quantile: float | None = None
    run_time_quantile: float | None = None
    max_slowed_pct: float | None = None
    model: Model | None = None
    cells: Spec | None = None
    preemptible: PreemptibleShare | None = None
    params: Mapping[str, Mapping[str, Any]] = NO_PARAMS
    solver: str | None = None
    """The solver of policies that need one; None for the best one that is installed."""
    solver_latency: float = 0.0
    """Seconds of the log that each solve takes."""
    predict: bool = False
    """Whether every policy predicts when jobs will end. Elastic policies always do."""
    sizes: Sequence[float] | None = None
    """Job sizes of a history, in GPU-seconds, for policies that need them; None for those of the
    log itself."""
    parts: int = 1
    """Number of parts of a GPU; quotas and widths are in these parts."""
    nodes: tuple[GpuNode, ...] = ()
    """The nodes, if they differ; the baseline treats all GPUs as equal."""
    speeds: tuple[SpeedRow, ...] = ()
    """Speeds of models by the number of nodes that they run on."""

    def policy(self, label: str) -> Policy:
        """Return a new policy with the options of its label, over `params` of its name.

        Raises KeyError and ValueError as `sia.policies.make`.
        """
        return make(label, self.params.get(name_of(label)))

    @property
    def context(self) -> PredictorContext:
        """The settings from which predictors are built, without the jobs."""
        windows, recent = self.options.windows, self.recent
        return PredictorContext(windows, recent=recent, seed=self.seed, model=self.model)

    def choice(self, label: str) -> Choice:
        """Parse a label. Raises KeyError for an unknown policy or predictor."""
        default = Choice(
            "",
            self.forecast,
            self.durations,
            self.load_quantile,
            self.run_time_quantile,
            self.max_slowed_pct,
        )
        return parse(label, default)


def policy_for(trace: Trace, table: PoolTable, label: str, settings: Settings) -> Policy:
    """Return a new policy; if it needs job sizes, it knows those of the log or of a history.

    Raises UserError if it would have more queues than a pool has GPUs.
    """
    policy = settings.policy(settings.choice(label).policy)
    if not policy.needs.sizes:
        return policy
    if settings.sizes is None:
        sizes = [size_of(job, duration) for job, duration in trace.arrivals]
    else:
        sizes = [size * settings.parts for size in settings.sizes]
    policy = policy.expecting(sizes, settings.parts)
    largest = max((quota for steps in table.quotas().values() for _, quota in steps), default=0)
    if policy.queues > largest:
        unit = "GPU" if settings.parts == 1 else "part"
        raise UserError(
            f"--policy: {label} has {policy.queues:,} queues, but the largest pool has "
            f"{counted(largest, unit)}; raise T, give fewer sizes, or cut GPUs with --parts"
        )
    return policy


def known_in_advance(settings: Settings, label: str) -> list[str]:
    """Return the future facts that a policy is given: "arrivals", "run times", both or neither."""
    choice = settings.choice(label)
    needs = load(choice.policy).needs
    found = []
    if needs.future or (needs.loads and loads_class(choice.forecast).needs_log):
        found.append("arrivals")
    if needs.future or (needs.run_times and run_times_class(choice.durations).needs_log):
        found.append("run times")
    return found


def replay_all(
    trace: Trace,
    table: PoolTable,
    settings: Settings,
    progress: ReplayProgress | None = None,
    past: PastJobs | None = None,
) -> list[Result]:
    """Replay all policies of `settings`, in order, each with its baseline.

    In a closed loop, submission times depend on the policy, so each policy has its own log and its
    own baseline. Forecasts learn from `past` before the replay begins.
    """
    for label in settings.policies:
        policy_for(trace, table, label, settings)
    baseline = replay_one(trace, table, BASELINE, settings, None, progress)
    results = []
    for label in settings.policies:
        if label == BASELINE:
            same = ClosedLoopLog(trace, 0.0) if settings.closed_loop else None  # nothing is shifted
            results.append(Result(trace, baseline, baseline, same))
        elif settings.closed_loop:
            results.append(_replay_closed(trace, table, label, settings, baseline, progress))
        else:
            schedule = replay_one(trace, table, label, settings, baseline, progress, past=past)
            results.append(Result(trace, baseline, schedule))
    _add_fair_ends(results, table)
    return results


def _add_fair_ends(results: Sequence[Result], table: PoolTable) -> None:
    """Add the ends under fluid fair share to schedules with predictions."""
    fair: dict[int, list[float | None]] = {}
    for result in results:
        if result.schedule.predictions is not None:
            log = id(result.trace)
            if log not in fair:
                fair[log] = fluid_ends(result.trace, table)
            result.schedule.fair_ends = fair[log]


def _replay_closed(
    trace: Trace,
    table: PoolTable,
    label: str,
    settings: Settings,
    baseline: Schedule,
    progress: ReplayProgress | None,
) -> Result:
    loop = ClosedLoop(trace, baseline)
    schedule = replay_one(trace, table, label, settings, None, progress, loop)
    effective, schedule = loop.effective(schedule)
    own_baseline = replay_one(effective, table, BASELINE, settings, None)
    sooner = loop.sooner(effective, schedule, settings.warmup)
    return Result(effective, own_baseline, schedule, ClosedLoopLog(trace, sooner))


def replay_one(
    trace: Trace,
    table: PoolTable,
    label: str,
    settings: Settings,
    baseline: Schedule | None,
    progress: ReplayProgress | None = None,
    loop: ClosedLoop | None = None,
    past: PastJobs | None = None,
) -> Schedule:
    """Replay one policy. Policies that need the future also need `baseline`.

    In a closed loop, `loop` gives the submission times. Forecasts learn from `past` before the
    replay begins.
    """
    choice = settings.choice(label)
    policy = policy_for(trace, table, label, settings)
    predict = settings.predict or policy.narrows
    if policy.fluid:
        return _fluid(trace, table, label, settings)
    spec = settings.cells
    cells = None if spec is None else Cells(spec)
    nodes = settings.nodes if policy.on_nodes else ()
    speeds = settings.speeds if nodes else ()
    exact = choice.forecast == choice.durations == "perfect"
    options = replace(settings.options, exact=exact)
    core = Core(table.pools, policy, options, cells, nodes, speeds)
    arrivals = trace.arrivals if policy.narrows else _rigid(trace, table)
    solve = _solver_of(policy, settings)
    if predict:
        core = ForetellingCore(
            core,
            lambda: type(policy)(policy.params),
            lambda: _solver_of(policy, settings) or no_solver,
        )
    placed = cells is not None or bool(nodes)
    recorder = Recorder(label, trace, segments=policy.needs.preemption, cells=placed)
    recorder.schedule.tables.update({table: [] for table in core.policy.tables})
    facts: list[PoolChanged | FutureRevealed] = [*table.changes]
    if policy.needs.future and arrivals:
        assert baseline is not None, f"{label} needs the baseline"
        facts = [_future(trace, arrivals, baseline), *facts]
        facts.sort(key=lambda fact: fact.time)
    run_times, loads = _predictors(trace, table, choice, settings, core, past, predict=predict)
    known = known_in_advance(settings, label)
    recorder.record_forecasts(
        [pool.name for pool in table.pools],
        loads=loads is not None and "arrivals" not in known,
        run_times=policy.needs.run_times and "run times" not in known,
    )
    reports = progress_of(trace, settings.parts)
    began = told = perf_counter()
    for instant in play(
        core,
        arrivals if loop is None else loop.without_predecessor,
        run_times=run_times,
        loads=loads,
        facts=facts,
        followers=None if loop is None else loop.followers,
        reports=reports,
        solve=solve or no_solver,
    ):
        recorder.take(instant)
        if reports:
            recorder.schedule.reports += sum(type(e) is JobProgressed for e in instant.events)
        if progress is not None and perf_counter() >= told + PROGRESS_EVERY:
            told = perf_counter()
            if recorder.ended < len(arrivals):
                progress(label, recorder.ended, len(arrivals))
    recorder.schedule.seconds = perf_counter() - began
    recorder.schedule.solver = solve
    recorder.schedule.too_wide = len(trace.arrivals) - len(arrivals)
    if isinstance(core, ForetellingCore):
        predicted = core.told
        recorder.schedule.predictions = [predicted.get(a.job.id) for a in trace.arrivals]
    recorder.schedule.leave_out_trials()
    if progress is not None:
        progress(label, len(arrivals), len(arrivals))
    return recorder.schedule


def _predictors(
    trace: Trace,
    table: PoolTable,
    choice: Choice,
    settings: Settings,
    core: Core,
    past: PastJobs | None,
    *,
    predict: bool,
) -> tuple[RunTimes | None, Loads | None]:
    """Return the predictors that a policy needs, after they have seen the past; else None."""
    needs = core.policy.needs
    context, run_times = settings.context, None
    if needs.run_times or predict:
        run_times = run_times_of(choice, trace, context, past)
    loads, places = None, core.state.places
    if needs.loads:
        loads = loads_of(choice, _in_cells(trace, places), table, context, past)
    if past is not None:
        warm_up(past, run_times, _rounded_to_cells(loads, places))
    if loads is not None and choice.guard is not None:
        loads = guarded(loads, choice.guard, trace, table, context.windows)
    return run_times, _rounded_to_cells(loads, places)


def _future(trace: Trace, arrivals: Sequence[Arrival], baseline: Schedule) -> FutureRevealed:
    """Return the event that tells a policy the future of these jobs of the log."""
    own = {arrival.job.id for arrival in arrivals}
    jobs = [
        FutureJob(arrival.job, arrival.duration, NEVER if start is None else start)
        for arrival, start in zip(trace.arrivals, baseline.starts, strict=True)
        if arrival.job.id in own
    ]
    return FutureRevealed(arrivals[0].job.submit, jobs)


def _rigid(trace: Trace, table: PoolTable) -> Sequence[Arrival]:
    """Return the jobs that are not wider than their pool."""
    return playable(trace, table).arrivals


def _fluid(trace: Trace, table: PoolTable, label: str, settings: Settings) -> Schedule:
    """Play fluid fair share. Predictors that learn when jobs end are not used."""
    began, choice = perf_counter(), settings.choice(label)
    estimates: dict[str, float] = {}
    if not run_times_class(choice.durations).learns:
        run_times = run_times_of(choice, trace, settings.context)
        estimates = {job.id: run_times.run_time(job) for job, _ in trace.arrivals}
    known = {job_id: seconds for job_id, seconds in estimates.items() if seconds < UNKNOWN_RUN_TIME}
    schedule = fluid_schedule(label, trace, table, known)
    schedule.seconds = perf_counter() - began
    return schedule


def _solver_of(policy: Policy, settings: Settings) -> ReplaySolver | None:
    if not policy.needs.solver:
        return None
    return ReplaySolver(settings.solver, settings.solver_latency)


def _in_cells(jobs: Trace, places: Places | None) -> Trace:
    """Return the jobs with widths rounded up to cells, as forecasts count them."""
    if places is None:
        return jobs
    return Trace([Arrival(rounded(job, places.gpus), seconds) for job, seconds in jobs.arrivals])


def _rounded_to_cells(loads: Loads | None, places: Places | None) -> Loads | None:
    return loads if loads is None or places is None else RoundedLoads(loads, places.gpus)
