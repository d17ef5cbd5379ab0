"""Builders for tests of the core: pools, jobs, and functions that play them out."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from cells.cells import Cells
from predictors.loads.sliding import SlidingMaximum
from predictors.perfect import PerfectLoads, PerfectRunTimes
from replay.logs.trace import PoolTable, Trace
from replay.synthetic.paper import PRESETS, synthesize
from sia import Core, Job, Options, Pool
from sia.contract.policy import Policy
from sia.core.playout import Arrival, play
from sia.decisions import Decision, MoveLoan, PreemptJob, ProposalRefused, ResizeJob, StartJob
from sia.events import FutureRevealed, JobFinished, PoolChanged
from sia.forecasts import Loads
from sia.model import FutureJob, Nodes
from sia.policies.queues.fcfs import Fcfs

SMALL = Options(windows=(5.0, 20.0, 100.0), tick=5.0)
"""Windows and a tick that fit workloads of a few minutes."""

LENGTHS = ((0, 5), (1, 5), (6, 20), (21, 100), (101, 160))
"""Run times of each bin of `SMALL`, the short ones twice."""


def crowded(seed: int, days: float) -> tuple[Trace, PoolTable]:
    """A log that takes the oracle a while: its jobs need nearly all GPUs."""
    return synthesize(PRESETS["base"]._replace(load_factor=1.3), seed, days)


class JobStory(NamedTuple):
    """The known facts about a job so far; `runs` adds its run time."""

    job_id: str
    width: int = 1
    owner: str = "a"
    submit: float = 0.0

    def gpus(self, width: int) -> "JobStory":
        return self._replace(width=width)

    def pool(self, owner: str) -> "JobStory":
        return self._replace(owner=owner)

    def at(self, submit: float) -> "JobStory":
        return self._replace(submit=float(submit))

    def runs(self, seconds: float) -> Arrival:
        return Arrival(Job(self.job_id, self.owner, self.submit, self.width), float(seconds))


def job(job_id: str) -> JobStory:
    """Build a job: by default one GPU of pool a, submitted at time 0."""
    return JobStory(job_id)


def pools(**quotas: int) -> list[Pool]:
    """Build pools of one sharing group."""
    return [Pool(name, quota) for name, quota in quotas.items()]


class Started(NamedTuple):
    """The schedule of a job; `loans` lists lender, number of GPUs and start of each loan."""

    start: float
    end: float
    stream: str
    loans: list[tuple[float, dict[str, int]]]
    nodes: Nodes = ()


def play_out(
    policy: type[Policy],
    owned: Sequence[Pool],
    arrivals: Sequence[Arrival],
    *,
    forecast: str = "perfect",
    options: Options = SMALL,
    quotas: Sequence[PoolChanged] = (),
    checked: bool = False,
    cells: Cells | None = None,
) -> dict[str, Started]:
    """Play a story with true run times; with `checked` all invariants are asserted at each instant.

    The load forecast is "perfect", "sliding-max" or "none" (no new load). With `cells`, each width
    must be that of a cell, because forecasts do not round widths up.
    """
    core = Core(owned, policy(), options, cells)
    durations = {arrival.job.id: arrival.duration for arrival in arrivals}
    started: dict[str, Started] = {}
    for instant in play(
        core,
        arrivals,
        run_times=PerfectRunTimes(durations),
        loads=_loads(forecast, owned, arrivals, options),
        facts=[*_revelations(policy, owned, arrivals, quotas), *quotas],
    ):
        for decision in instant.decisions:
            _note(started, instant.now, decision, durations)
        if checked:
            core.check()
    core.check()
    return started


def starts(played: dict[str, Started]) -> dict[str, float]:
    return {job_id: started.start for job_id, started in played.items()}


def revealed(
    owned: Sequence[Pool], arrivals: Sequence[Arrival], quotas: Sequence[PoolChanged] = ()
) -> FutureRevealed:
    """Return the plan that SIA-VC gets at the first submit: all jobs with their virtual starts."""
    baseline = starts(play_out(Fcfs, owned, arrivals, quotas=quotas))
    jobs = [FutureJob(a.job, a.duration, baseline.get(a.job.id, inf)) for a in arrivals]
    return FutureRevealed(arrivals[0].job.submit, jobs)


def _revelations(
    policy: type[Policy],
    owned: Sequence[Pool],
    arrivals: Sequence[Arrival],
    quotas: Sequence[PoolChanged],
) -> list[FutureRevealed]:
    return [revealed(owned, arrivals, quotas)] if policy.needs.future and arrivals else []


def _loads(
    forecast: str, owned: Sequence[Pool], arrivals: Sequence[Arrival], options: Options
) -> Loads | None:
    if forecast == "none":
        return None
    if forecast == "perfect":
        return PerfectLoads([arrival.job for arrival in arrivals], options.windows)
    assert forecast == "sliding-max"
    return SlidingMaximum([pool.name for pool in owned], options.windows, 0.0)


def _note(
    started: dict[str, Started], now: float, decision: Decision, durations: dict[str, float]
) -> None:
    if isinstance(decision, StartJob):
        assert decision.job_id not in started, f"{decision.job_id} was started twice"
        end = now + durations[decision.job_id]
        loans = [(now, dict(decision.loans))] if decision.loans else []
        stream = decision.stream.value
        started[decision.job_id] = Started(now, end, stream, loans, decision.nodes)
    elif isinstance(decision, MoveLoan):
        loans = started[decision.job_id].loans
        donors = dict(loans[-1][1])
        donors[decision.donor] = donors.get(decision.donor, 0) + decision.gpus
        donors[decision.previous] -= decision.gpus
        loans.append((now, {donor: gpus for donor, gpus in donors.items() if gpus}))
    else:
        assert not isinstance(decision, ProposalRefused), decision


class Workload(NamedTuple):
    pools: list[Pool]
    arrivals: list[Arrival]

    def plain(
        self,
    ) -> tuple[list[tuple[str, int, str, bool]], list[tuple[str, str, int, int, int]]]:
        """Return the workload as tuples of whole numbers, for the naive models."""
        owned = [(pool.name, pool.quota, pool.group, pool.share) for pool in self.pools]
        jobs = [(j.id, j.pool, int(j.submit), j.width, int(d)) for j, d in self.arrivals]
        return owned, jobs


def limited(rng: Random, owned: Sequence[Pool]) -> list[Pool]:
    """Draw lend limits, borrow limits and weights for most of the pools."""
    limits = [None, None, 0, 1, 3, 6]
    return [
        replace(
            pool,
            lend_limit=rng.choice(limits),
            borrow_limit=rng.choice(limits),
            weight=rng.choice([0.5, 1.0, 1.0, 4.0]),
        )
        for pool in owned
    ]


def random_workload(rng: Random) -> Workload:
    """Small pools under a load of 0.3 to 1.3 each, in bursts, with many ties; often one group."""
    groups = rng.choice([[""], [""], ["east", "west"]])
    owned = [
        Pool(name, rng.randint(1, 12), rng.choice(groups), share=rng.random() < 0.9)
        for name in "abcde"[: rng.randint(1, 5)]
    ]
    arrivals = [a for pool in owned for a in _random_jobs(rng, pool)]
    rng.shuffle(arrivals)
    arrivals.sort(key=lambda arrival: arrival.job.submit)
    return Workload(owned, arrivals)


def with_priorities(rng: Random, arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Give half of the jobs a priority, which most share with other jobs."""
    return [
        a._replace(job=replace(a.job, priority=rng.choice([0, 0, 0, -3, 1, 2, 7])))
        for a in arrivals
    ]


def with_urgent_jobs(owned: Sequence[Pool], arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Put a job of no length and of the highest priority before all other jobs of each pool.

    So `sia` knows from the beginning that jobs may be overtaken.
    """
    first = [job(f"urgent {pool.name}").pool(pool.name).runs(0) for pool in owned]
    return [a._replace(job=replace(a.job, priority=7)) for a in first] + [*arrivals]


def _random_jobs(rng: Random, pool: Pool) -> list[Arrival]:
    count = rng.randint(1, 10)
    widths = [rng.choice([1, pool.quota, rng.randint(1, pool.quota)]) for _ in range(count)]
    durations = [rng.randint(*rng.choice(LENGTHS)) for _ in range(count)]
    service = sum(width * duration for width, duration in zip(widths, durations, strict=True))
    span = int(service / (pool.quota * rng.uniform(0.3, 1.3)))
    # Rounded times coincide with ticks and with arrivals of other pools.
    rounded = rng.choice([1, 5])
    bursts = [rng.randint(0, span) // rounded * rounded for _ in range(rng.randint(1, count))]
    return [
        job(f"{pool.name}{i}").gpus(width).pool(pool.name).at(rng.choice(bursts)).runs(duration)
        for i, (width, duration) in enumerate(zip(widths, durations, strict=True))
    ]


def play_segments(
    policy: type[Policy],
    owned: Sequence[Pool],
    arrivals: Sequence[Arrival],
    *,
    options: Options = SMALL,
    quotas: Sequence[PoolChanged] = (),
    checked: bool = False,
) -> dict[str, list[tuple[float, float, int]]]:
    """Play out a workload with true run times; return start, end and GPUs of each segment."""
    core = Core(owned, policy(), options)
    durations = {arrival.job.id: arrival.duration for arrival in arrivals}
    widths = {arrival.job.id: arrival.job.width for arrival in arrivals}
    segments: dict[str, list[tuple[float, float, int]]] = {}
    running: dict[str, tuple[float, int]] = {}

    def stop(job_id: str, now: float) -> None:
        start, width = running.pop(job_id)
        if now > start:
            segments.setdefault(job_id, []).append((start, now, width))

    for now, events, decisions in play(
        core, arrivals, run_times=PerfectRunTimes(durations), facts=quotas
    ):
        for event in events:
            if isinstance(event, JobFinished):
                stop(event.job_id, now)
        for decision in decisions:
            assert not isinstance(decision, ProposalRefused), decision
            if isinstance(decision, PreemptJob | ResizeJob):
                stop(decision.job_id, now)
            if isinstance(decision, StartJob | ResizeJob):
                assert decision.job_id not in running, f"{decision.job_id} runs already"
                running[decision.job_id] = now, decision.width or widths[decision.job_id]
        if checked:
            core.check()
    core.check()
    assert not running
    return segments
