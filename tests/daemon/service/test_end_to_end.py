"""A day of three pools that share: what the daemon did is what the core alone would have done."""

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest
from msgspec import json

from daemon.backends.local.backend import LocalBackend
from daemon.backends.simulated.backend import SimulatedBackend
from daemon.forecasts.forecaster import ForecastService, Predictors
from daemon.journal.journal import Journal
from daemon.model.inputs import Ended, Estimated, Foreseen, Started, Submit, Tick
from daemon.model.job import JobPhase
from daemon.model.setup import Node, Setup
from daemon.runtime.clock import Clock, FastClock
from daemon.service.service import Service
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_pools, write_schedule, write_trace
from replay.run.run import BASELINE, Settings, replay_one
from replay.run.schedule import LoanSpan, Schedule
from sia import Core
from sia.core.playout import Arrival
from sia.decisions import StartJob
from sia.events import ForecastUpdated, JobFinished, JobSubmitted, RunTimesUpdated, TimePassed
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job, Options, Pool
from sia.policies import make
from tests.support.budget import budget
from tests.support.daemons.daemons import job, until

JOBS = 200
PROCESSES = budget(ci=50, soak=200)
POOLS = (Pool("a", 4), Pool("b", 4), Pool("c", 2))
PLENTY = (Node("local", tuple(range(10))),)


async def submit_over(service, clock, specs):
    """Each job at its time; answers are as good as durable."""
    for at, spec in specs:
        while clock.now() < at:
            await clock.sleep_until(at)
        (answer,) = await service.submit([Submit(spec)])
        assert answer.new, answer


async def live(service, clock, specs):
    """From the first submission to the last end."""
    await service.start()
    try:
        await submit_over(service, clock, specs)
        await until(lambda: not service.book.jobs, seconds=60.0)
    finally:
        await service.stop()


def what_happened(path):
    """All of a stopped daemon's journal."""
    journal = Journal(path)
    try:
        first = min(journal.snapshots(), default=0)
        return SimpleNamespace(
            snapshot_before=first,
            records=list(journal.records(0)),
            notices=journal.notices(0, 10**6),
            ended={record.spec.id: record for _, record in journal.history(0, 10**6)},
        )
    finally:
        journal.close()


def core_alone(setup, records):
    """When a core starts whom that is told what the journal has, and nothing of the daemon.

    Jobs are submitted once each and end once, so that their ids are the core's.
    """
    core = Core(setup.pools, make(setup.policy), setup.options)
    starts = {}
    for record in records:
        now, events = record.now, []
        for each in record.inputs:
            if type(each) is Submit:
                spec = each.spec
                new = Job(spec.id, spec.pool, now, spec.gpus, spec.user, spec.name)
                events.append(JobSubmitted(now, new, each.run_time or UNKNOWN_RUN_TIME))
            elif type(each) is Ended:
                events.append(JobFinished(now, each.job))
            elif type(each) is Foreseen:
                events.append(ForecastUpdated(now, each.loads))
            elif type(each) is Estimated:
                waiting = [e for e in each.estimates if core.state.jobs[e.job_id].stream is None]
                events.append(RunTimesUpdated(now, waiting))
            else:
                assert type(each) in (Started, Tick), each
        if now >= core.wake:
            events.append(TimePassed(now))
        if events:
            decisions = core.step(now, events)
            core.check()
            starts |= {d.job_id: now for d in decisions if type(d) is StartJob}
    return starts


def loans_in(notices):
    """Who lent what to whom from when to when, by what people were told."""
    open_, loans = {}, []

    def close(job_id, donor, at, gpus):
        held, since = open_.pop((job_id, donor))
        if at > since:
            loans.append(LoanSpan(job_id, donor, held, since, at))
        if held - gpus:
            open_[job_id, donor] = held - gpus, at

    def begin(job_id, donor, at, gpus):
        before = 0
        if (job_id, donor) in open_:
            before = open_[job_id, donor][0]
            close(job_id, donor, at, before)
        open_[job_id, donor] = before + gpus, at

    for notice in notices:
        if notice.kind == "loan_opened":
            begin(notice.job, notice.pool, notice.time, notice.data["gpus"])
        elif notice.kind == "loan_moved":
            gpus = notice.data["gpus"]
            close(notice.job, notice.data["previous"], notice.time, gpus)
            begin(notice.job, notice.pool, notice.time, gpus)
        elif notice.kind == "loan_closed":
            close(notice.job, notice.pool, notice.time, notice.data["gpus"])
    assert not open_, "loans that nobody closed"
    return loans


def as_schedule(told):
    """The daemon's history as a trace and what became of it."""
    records = sorted(told.ended.values(), key=lambda record: record.submitted)
    arrivals = [
        Arrival(
            Job(r.spec.id, r.spec.pool, r.submitted, r.spec.gpus, r.spec.user),
            r.ended - r.decided,
        )
        for r in records
    ]
    schedule = Schedule(
        "sia",
        [r.decided for r in records],
        [r.decided + (r.ended - r.decided) for r in records],
        [r.stream.value == "spare" for r in records],
        loans=loans_in(told.notices),
        nodes=[r.nodes for r in records],
    )
    return Trace(arrivals), schedule


def assert_all_is_well(told, setup, specs, tmp_path, checker, *, places):
    """Assert the invariants that hold for every history on every backend."""
    assert sorted(told.ended) == sorted(spec.id for _, spec in specs)
    assert {record.phase for record in told.ended.values()} == {JobPhase.FINISHED}
    assert {record.attempt for record in told.ended.values()} == {1}
    once = dict.fromkeys(told.ended, 1)
    for kind in ("submitted", "started", "ended"):
        assert Counter(n.job for n in told.notices if n.kind == kind) == once, kind
    seen = Counter(notice.job for notice in told.notices if notice.kind == "running")
    assert set(seen.values()) == {1}
    assert len(seen) > 0.9 * len(specs)  # who is gone at once is not seen to run
    assert [notice.seq for notice in told.notices] == list(range(1, len(told.notices) + 1))

    starts = core_alone(setup, told.records)
    assert starts == {job_id: record.decided for job_id, record in told.ended.items()}

    trace, schedule = as_schedule(told)
    table = PoolTable(list(setup.pools))
    out = tmp_path / "out"
    write_trace(tmp_path / "trace.csv", trace)
    write_pools(tmp_path / "pools.csv", table)
    write_schedule(out, trace, schedule)
    violations, _ = checker(
        tmp_path / "trace.csv", tmp_path / "pools.csv", out, "sia", places=places
    )
    assert not violations
    return trace, schedule


def a_day(seed):
    """200 jobs of three pools over 36 hours: short ones mostly, in bursts."""
    random = Random(seed)
    specs, at = [], 0.0
    for i in range(JOBS):
        at += random.choice((0.0, 30.0, 600.0, 1300.0))
        pool = random.choice("aaabbc")
        gpus = random.choice((1, 1, 1, 2, 2, 4)) if pool != "c" else random.choice((1, 2))
        seconds = random.choice((60.0, 200.0, 1000.0, 3000.0, 9000.0))
        user = f"{pool}-{seconds:.0f}"  # so that run times can be foreseen
        specs.append((at, job(f"j{i}", pool, gpus, user=user, duration=seconds)))
    return specs


@pytest.mark.parametrize("nodes", [(), PLENTY], ids=["counted", "numbered"])
def test_a_simulated_day_of_three_pools(tmp_path, checker, nodes):
    setup = Setup(POOLS, policy="sia", options=Options(windows=(300.0, 3600.0)), nodes=nodes)
    start = 1_700_000_100.0
    specs = [(start + at, spec) for at, spec in a_day(7)]
    path = tmp_path / "sia.db"

    async def play():
        clock = FastClock(20_000.0, start)
        foresight = ForecastService(Predictors(setup, "peaks:0.5+survival:0.7"))
        service = Service(setup, SimulatedBackend(clock), Journal(path), clock, foresight=foresight)
        await live(service, clock, specs)

    asyncio.run(play())
    told = what_happened(path)
    _, schedule = assert_all_is_well(told, setup, specs, tmp_path, checker, places=bool(nodes))

    assert sum(schedule.spare) >= 10, "a day without loans shows nothing"
    assert any(loan.donor != told.ended[loan.job_id].spec.pool for loan in schedule.loans)


def test_processes_of_three_pools(tmp_path, checker):
    """Real ones: they last a moment each, so that nothing is lent but by what is said of them."""
    options = Options(windows=(1.0, 5.0), tick=0.5)
    setup = Setup(POOLS, policy="mmfs", options=options, nodes=PLENTY)
    random = Random(3)
    specs = []
    for i in range(PROCESSES):
        pool, gpus = random.choice("aaabbc"), random.choice((1, 1, 2))
        seconds = f"{random.uniform(0, 0.1):.2f}"
        specs.append((0.0, job(f"p{i}", pool, gpus, command=("/bin/sleep", seconds))))
    path = tmp_path / "sia.db"

    async def play():
        clock = Clock()
        backend = LocalBackend(tmp_path / "jobs", gpus=10)
        service = Service(setup, backend, Journal(path), clock)
        await live(service, clock, specs)

    asyncio.run(play())
    told = what_happened(path)
    _, schedule = assert_all_is_well(told, setup, specs, tmp_path, checker, places=True)

    assert any(schedule.spare)


def test_the_daemon_gains_as_much_as_a_replay_of_the_same_log(tmp_path):
    """The history is a log like any other: replayed first come, first served, it waits longer."""
    setup = Setup(POOLS, policy="mmfs", options=Options(windows=(300.0, 3600.0)))
    start = 1_700_000_100.0
    specs = [(start + at, spec) for at, spec in a_day(8)]
    path = tmp_path / "sia.db"

    async def play():
        clock = FastClock(40_000.0, start)
        service = Service(setup, SimulatedBackend(clock), Journal(path), clock)
        await live(service, clock, specs)

    asyncio.run(play())
    trace, schedule = as_schedule(what_happened(path))
    alone = replay_one(trace, PoolTable(list(POOLS)), BASELINE, Settings([]), None)

    assert sum(schedule.starts) < sum(alone.starts)


def test_the_journal_reads_as_json(tmp_path):
    """Whoever looks at it needs nothing of ours."""
    path = tmp_path / "sia.db"
    setup = Setup(POOLS, policy="fcfs")

    async def play():
        clock = Clock()
        service = Service(setup, SimulatedBackend(clock), Journal(path), clock)
        await live(service, clock, [(0.0, job("one", duration=0.01))])

    asyncio.run(play())
    for record in what_happened(path).records:
        assert isinstance(json.decode(record.decisions), list)
