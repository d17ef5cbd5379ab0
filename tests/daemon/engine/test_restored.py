"""An engine that is restored once, at any step of any story, decides from then on as before."""

from random import Random

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.journal.rows import decisions_json
from daemon.model.inputs import (
    Answered,
    Cancel,
    Drain,
    Ended,
    Estimated,
    Foreseen,
    Hold,
    Lending,
    Limited,
    Lost,
    NodeDown,
    NodeUp,
    Release,
    Reported,
    Requeued,
    Resized,
    Resume,
    SetPool,
    SetPriority,
    Started,
    Stopped,
    Tick,
)
from daemon.model.job import JobPhase
from daemon.model.setup import Setup
from sia.contract.solvers import answer
from sia.decisions import ProposalRefused
from sia.model import Estimate, Load, Options, Pool, Regime
from sia.policies import load, names
from tests.support.budget import budget
from tests.support.clusters.cells import spec
from tests.support.daemons.daemons import SMALL, setup, submit

STORIES = budget(ci=1, soak=100)

STEPS = 100
"""Steps of a story: enough for jobs to be stopped, lent to and started anew."""

RESTORES = 0.06
"""Share of the steps before which one more engine is restored, which then lives to the end."""

SOLVED = 0.3
"""Share of the programs that are solved, because this takes most of the time."""

LABELS = [
    *(name for name in names() if not load(name).needs.future),
    "chronus:profile=0", "chronus:profile=300:capacity=16", "jvu:puo:cycle=1", "prio:kill",
    "sia:turns:risk=0.2", "sia:chance=0.3",
]  # fmt: skip

IN_CELLS = [name for name in LABELS if load(name.partition(":")[0]).places]

NODES = ("n0", "n1", "n2", "n3")


def on_nodes(policy, rng):
    """Two pools of two nodes each."""
    options = replace(SMALL, owners=rng.random() < 0.7, resume_cost=rng.choice([0.0, 3.0]))
    return replace(
        setup((8,) * len(NODES), a=16, b=16),
        policy=policy,
        options=options,
        resizes=rng.random() < 0.5,
        stops_per_job=rng.choice([0, 0, 2]),
    )


def in_cells(policy, rng):
    """Three pools that own one or two nodes."""
    quotas = {"a": 1, "b": 1, "c": 2}
    return Setup(
        tuple(Pool(name, 8 * nodes) for name, nodes in quotas.items()),
        policy,
        Options(SMALL.windows, SMALL.tick, exact=rng.random() < 0.5),
        cells=spec(quotas={name: {"node": nodes} for name, nodes in quotas.items()}),
        preemptible=5.0,
    )


class Story:
    """An engine, those that were restored from its snapshots, and what happens to all of them."""

    def __init__(self, cluster, rng):
        self.engine, self.rng = Engine.new(cluster), rng
        self.pools = [pool.name for pool in cluster.pools]
        self.most = max(pool.quota for pool in cluster.pools)
        self.restored = {}  # by the step before which it was
        self.longest = 300.0 if cluster.cells is None else 100.0  # between two steps
        self.now, self.submitted = 0.0, 0

    def live(self):
        """Raise AssertionError at the first step in which a restored engine decides otherwise."""
        for number in range(STEPS):
            self.now += self.rng.choice([0.0, 1.0, 5.0, 10.0, 60.0, self.longest])
            inputs = [*self.backend(), *self.happens()] or [Tick()]
            if self.rng.random() < RESTORES:
                self.restored[number] = Engine.restore(self.engine.dump())
            step = self.engine.step(self.now, inputs)
            self.engine.check()
            assert not [d for d in step.decisions if type(d) is ProposalRefused and d.impossible]
            decisions = decisions_json(step.decisions)
            for born, engine in self.restored.items():
                again = decisions_json(engine.step(self.now, inputs).decisions)
                assert again == decisions, f"step {number} after a restore before step {born}"

    def backend(self):
        """Carry out most orders sooner or later."""
        rng, book = self.rng, self.engine.book
        if book.solving is not None and rng.random() < 0.7:
            if rng.random() < SOLVED:
                said = answer(self.now, book.solving, timed=False).event
                yield Answered(said.request, said.status, said.values, said.bound)
            else:
                yield Answered(book.solving.request, "failed")
        for record in [*book.jobs.values()]:
            name, attempt = record.spec.id, record.attempt
            if record.phase is JobPhase.STARTING and record.placed and rng.random() < 0.6:
                yield Started(name, attempt)
            elif record.phase is JobPhase.STOPPING and rng.random() < 0.5:
                yield Stopped(name, attempt, lost=rng.random() < 0.1)
            elif record.phase is JobPhase.ENDING and rng.random() < 0.5:
                yield Ended(name, attempt, None, 15)
            elif record.phase is JobPhase.RUNNING and rng.random() < 0.05:
                yield Ended(name, attempt, rng.choice([0, 0, 1]))
        for name in [*book.leaving]:
            record = self.engine.core.state.jobs.get(book.jobs[name].core)
            if record is not None and rng.random() < 0.5:
                yield Resized(name, book.jobs[name].attempt, record.width)

    def happens(self):
        rng, jobs = self.rng, [*self.engine.book.jobs.values()]
        if not jobs or rng.random() < 0.4:
            yield self.submission()
        if jobs and rng.random() < 0.6:
            yield self.of(rng.choice(jobs))
        if rng.random() < 0.15:
            yield self.operator()

    def submission(self):
        rng = self.rng
        self.submitted += 1
        gpus = rng.choice([each for each in (1, 2, 4, 8, 12, 16) if each <= self.most])
        kinds = [{}, {}, {"iterations": 1000}]
        kinds.append({"mode": "gns", "regimes": (Regime("32", 20, 9.0), Regime("64", 20, 5.0))})
        if "c" not in self.pools:  # cells do not take elastic jobs
            kinds.append({"min_width": 1, "max_width": 2 * gpus})
        return submit(
            f"j{self.submitted}", rng.choice(self.pools), gpus,
            rng.choice([0.0, 4.0, 18.0, 90.0, 500.0, 3000.0]),
            deadline=rng.choice([None, self.now + 5000.0, self.now + 20000.0]),
            preemptible=rng.choice([None, None, 3.0, "restart", "never"]),
            priority=rng.choice([0, 0, 0, 1]), user=rng.choice(["", "anna"]),
            time_limit=rng.choice([None, None, 600.0]), requeue=rng.random() < 0.5,
            **rng.choice(kinds),
        )  # fmt: skip

    def of(self, record):
        """What a user or the backend says of a job; much of it is refused."""
        rng, name, attempt = self.rng, record.spec.id, record.attempt
        if record.spec.iterations:
            report = Reported(name, attempt, iterations=rng.randrange(1001))
        else:
            report = Reported(name, attempt, rng.random(), rng.choice([None, 0.5, 2.0]))
        return rng.choice([
            Ended(name, attempt, 0), Ended(name, attempt, 0), Ended(name, attempt, 0),
            Lost(name, attempt, "gone"), Stopped(name, attempt), report, report,
            Requeued(name, attempt, "requeued", hold=rng.random() < 0.3),
            Cancel(name), Hold(name), Release(name), Release(name),
            SetPriority(name, rng.choice([-1, 0, 1])), Limited(name, rng.choice([30.0, 900.0])),
            Estimated([Estimate(record.core, rng.choice([10.0, 200.0, 2000.0]))]),
        ])  # fmt: skip

    def operator(self):
        rng, node, pool = self.rng, self.rng.choice(NODES), self.rng.choice(self.pools)
        windows = range(len(SMALL.windows))
        return rng.choice([
            Drain(node), Resume(node), Resume(node), NodeDown(node, "down"), NodeUp(node),
            NodeUp(node), lending(rng.random()),
            Foreseen([Load(name, w, rng.randint(0, 8)) for name in self.pools for w in windows]),
            SetPool(pool, weight=rng.choice([1.0, 2.0]), lend_limit=rng.choice([0, 4, 16])),
            SetPool(pool, quota=8, until=self.now + 300.0),
        ])  # fmt: skip


def lending(drawn):
    return Lending(on=drawn < 0.7, shadow=drawn > 0.8)


def lived(cluster, policy, seed):
    rng = Random(f"{policy} {seed}")
    Story(cluster(policy, rng), rng).live()


@pytest.mark.parametrize("policy", LABELS)
def test_a_restored_engine_decides_as_the_undisturbed_one(policy):
    for seed in range(STORIES):
        lived(on_nodes, policy, seed)


@pytest.mark.parametrize("policy", IN_CELLS)
def test_a_restored_engine_places_as_the_undisturbed_one(policy):
    for seed in range(STORIES):
        lived(in_cells, policy, seed)


@pytest.mark.parametrize(
    ("cluster", "policy", "seed"),
    [
        pytest.param(on_nodes, "chronus:profile=0", 2, id="order of stops"),
        pytest.param(in_cells, "sia-reclaim", 2, id="turn of a guest that has ended"),
        pytest.param(in_cells, "sia-reclaim", 13, id="turn of a guest that ran 0 seconds"),
    ],
)
def test_stories_that_once_went_wrong(cluster, policy, seed):
    lived(cluster, policy, seed)


@pytest.mark.parametrize("policy", ["jvu", "jvu:puo"])
def test_a_plan_without_gpus_is_restored(policy):
    """All nodes are out while a solver is asked."""
    engine = Engine.new(replace(setup((8,), a=8), policy=policy))
    engine.step(0.0, [Drain("n0"), submit("j", gpus=2), submit("k", gpus=8)])
    engine.step(12.0, [Tick()])
    asked = engine.book.solving
    assert asked is not None
    restored = Engine.restore(engine.dump())
    inputs = [Answered(asked.request, "optimal", [0.0] * len(asked.program.costs))]
    told = [each.step(13.0, inputs).decisions for each in (engine, restored)]
    assert told[0] == told[1]
    assert engine.dump() == restored.dump()
