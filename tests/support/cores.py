"""Cores whose policy is controlled by a test, and helpers to inspect their state."""

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core, Stream
from sia.contract.policy import Policy
from sia.contract.proposals import Start
from sia.core.playout import play
from sia.decisions import ProposalRefused
from sia.events import JobSubmitted, PoolChanged
from sia.policies.elastic.afs import Afs
from sia.policies.elastic.fair_share import FairShare
from sia.policies.elastic.fifo import ElasticFifo
from sia.policies.elastic.srsf import ElasticSrsf
from sia.policies.elastic.srtf import ElasticSrtf
from sia.policies.elastic.themis_lease import ThemisLease
from sia.policies.preemptive.emmfs import ElasticMaxMin
from sia.policies.preemptive.las import Las
from sia.policies.preemptive.srsf import Srsf
from sia.policies.preemptive.srtf import Srtf
from sia.policies.queues.easy import Easy
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.gssf import GlobalSsf
from sia.policies.queues.hived import HiveD
from sia.policies.queues.mmfs import MaxMin
from sia.policies.queues.sjf import Sjf
from sia.policies.queues.ssf import Ssf
from sia.policies.queues.themis import Themis
from sia.policies.shockwave.allox import AlloX
from sia.policies.shockwave.filtered import Filter
from sia.policies.shockwave.policy import Shockwave
from sia.policies.shockwave.shares import FinishTimeFair, GandivaFair, Gavel, MaxSteps, Ossp
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from sia.policies.wfq.policy import Wfq
from tests.support.builders import SMALL, pools, revealed

POLICIES = [Fcfs, Ssf, GlobalSsf, MaxMin, Sia, SiaVc, Sjf, Easy, HiveD, Themis]
IN_ROUNDS = [
    Gavel, GandivaFair, Ossp, MaxSteps, FinishTimeFair, AlloX, Filter, Shockwave,
]  # fmt: skip
IN_EACH_POOL = [ElasticFifo, ElasticSrtf, ElasticSrsf, Afs, ThemisLease, FairShare, Wfq]
PREEMPTING = [Srtf, Srsf, Las, ElasticMaxMin, *IN_EACH_POOL]


class OnCue(Policy):
    """A policy that makes the proposals of the test, valid or not."""

    shares = True

    def __init__(self):
        super().__init__()
        self.cues = []

    def propose(self, _now, _changes):
        while self.cues:
            yield self.cues.pop(0)


def on_cue(*arrivals, **quotas):
    """Return a core with these jobs submitted, which starts none by itself."""
    core = Core(pools(**quotas), OnCue(), SMALL)
    core.step(0.0, [JobSubmitted(0.0, arrival.job, arrival.duration) for arrival in arrivals])
    return core


def propose(core, stream, *job_ids):
    core.policy.cues += [Start(core.state.jobs[job_id], stream, "on cue") for job_id in job_ids]
    decisions = core.step(core.state.now, [])
    core.check()
    return decisions


def start_dedicated(core, *job_ids):
    return propose(core, Stream.DEDICATED, *job_ids)


def start_spare(core, *job_ids):
    return propose(core, Stream.SPARE, *job_ids)


def photograph(core):
    """Return the whole state as plain values."""
    state = core.state
    return (
        state.now,
        state.waiting,
        state.arrivals,
        {group.name: group.idle for group in state.groups},
        {
            pool.name: (
                pool.quota,
                pool.dedicated,
                pool.spare,
                pool.lent,
                pool.unused,
                pool.pending_width,
                list(pool.pending),
                sorted(pool.out_of_order),
                list(pool.lent_to),
                list(pool.load),
            )
            for pool in state.pools.values()
        },
        {
            job_id: (
                (job.stream, job.start, job.width, job.attempt, job.done, job.run_time),
                {p.name: gpus for p, gpus in job.loans.items()},
            )
            for job_id, job in state.jobs.items()
        },
    )


def refusals(decisions):
    return [decision for decision in decisions if isinstance(decision, ProposalRefused)]


def random_quotas(rng, owned, arrivals):
    """Return changes of quotas while jobs arrive; at the end all have their first values again."""
    span = int(arrivals[-1].job.submit) + 50
    times = sorted(rng.randint(0, span) for _ in range(2 * len(owned)))
    changed = [
        PoolChanged(float(time), pool.name, rng.randint(0, 12))
        for time in times
        for pool in [rng.choice(owned)]
    ]
    return changed + [PoolChanged(span + 1.0, pool.name, pool.quota) for pool in owned]


def playing(policy, owned, arrivals, quotas):
    """Return a core and its playout with perfect forecasts."""
    core = Core(owned, policy(), SMALL)
    facts = [revealed(owned, arrivals, quotas)] if policy.needs.future else []
    instants = play(
        core,
        arrivals,
        run_times=PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals}),
        loads=PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows),
        facts=sorted([*facts, *quotas], key=lambda fact: fact.time),
    )
    return core, instants


def running(core):
    jobs = core.state.jobs.items()
    return {i: (job.start, job.stream, job.width) for i, job in jobs if job.stream is not None}
