"""What cells promise, over long random histories on clusters of all sorts."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from cells.cells import Cells
from cells.layout.requests import BlockReason
from cells.layout.spec import CellsError, NodeSpec, QuotaSpec, Spec, Top
from tests.support.budget import budget
from tests.support.clusters.cells import LINES, NODES, machine, some_quotas, top, wants
from tests.support.naive.naive_cells import Naive

POOLS = "abc"
WIDTHS = [(1,), (1,), (1,), (2,), (3,), (4,), (6,), (8,), (4, 2), (1, 1, 3)]
CALM = {"dedicated": 4, "spare": 4, "end": 4}
NODES_LOST = {"node_lost": 0.5, "node_back": 1}
UPHEAVAL = {"other_quota": 0.5, "node_removed": 0.1, "top_added": 0.1}


class History:
    """Random steps on a random cluster."""

    def __init__(self, seed, **options):
        self.rng = Random(seed)
        self.cells = machine(self.rng, **options)
        self.chains = list(self.cells._states)
        self.holds = {chain: self.cells.reservations(chain) for chain in self.chains}
        self.held = {}
        self.count = 0

    def name(self):
        self.count += 1
        return f"j{self.count}"

    def asked(self, widths=WIDTHS):
        chain, pool = self.rng.choice(self.chains), self.rng.choice(POOLS)
        pins = self.cells._pinned
        pin = "vip" if pins.get("vip") == chain and pool == "a" and self.rng.random() < 0.3 else ""
        return wants(pool, *self.rng.choice(widths), chain=chain, pin=pin)

    def dedicated(self):
        how = self.rng.choice([self.cells.allocate, self.cells.allocate, self.cells.claim])
        how(self.name(), self.asked())

    def spare(self):
        request = self.asked([(1,), (1,), (2,), (4,), (8,)])._replace(pin="")
        holds = self.holds[request.chain]
        kept = holds.satisfied()
        lent = self.cells.lend(self.name(), request, [holds])
        assert kept or lent is None
        assert holds.satisfied() == kept

    def reservation(self):
        self.cells.reserve(self.name(), self.asked())

    def end(self):
        if self.cells._jobs:
            self.cells.free(self.rng.choice(list(self.cells._jobs)))

    def node_lost(self):
        node = self.rng.choice(list(self.cells.nodes()))
        self.cells.take_out(node, self.rng.choice(["bad", "drained"]))

    def node_back(self):
        self.cells.bring_back(self.rng.choice(list(self.cells.nodes())))

    def node_removed(self):
        if len(self.cells.nodes()) > 2:
            self.cells.remove(self.rng.choice(list(self.cells.nodes())))

    def top_added(self):
        self.cells.add(top(self.rng.choice(self.chains), f"{self.name()}-"))

    def other_quota(self):
        with contextlib.suppress(CellsError):  # they do not fit
            self.cells.set_quotas(some_quotas(self.rng, POOLS, self.chains))

    def hold(self):
        for chain in self.chains:
            for pool in POOLS:
                self.held[chain, pool] = self.rng.choice([0, 1, 2, 3, 4, 6, 8, 12])
                self.holds[chain].set(pool, self.held[chain, pool])

    def step(self, **weights):
        (what,) = self.rng.choices(list(weights), list(weights.values()))
        getattr(self, what)()

    def all_gone(self):
        for job in list(self.cells._jobs):
            self.cells.free(job)


@pytest.mark.parametrize("seed", range(budget(ci=30, soak=120)))
def test_invariants_hold_after_any_step(seed):
    history = History(seed)
    for _ in range(100):
        history.step(**CALM, **NODES_LOST, **UPHEAVAL, reservation=1, hold=0.5)
        history.cells.check()
        blocked = history.cells.blockers(history.asked())
        assert blocked is None or (blocked.reason is BlockReason.SPARE) == bool(blocked.spare_jobs)
    history.cells.check()


@pytest.mark.parametrize("seed", range(budget(ci=10, soak=20)))
def test_all_merges_when_all_jobs_are_gone(seed):
    history = History(seed, pinned=False)
    for _ in range(100):
        history.step(**CALM, **NODES_LOST, reservation=1)
    history.all_gone()
    for node in history.cells.nodes():
        history.cells.bring_back(node)
    history.cells.check()
    for state in history.cells._states.values():
        assert state.common.vacant is state.common.open
        assert state.common.open.counts() == [0] * state.shape.top + [state.tops]
    assert history.cells.shortages() == []


@pytest.mark.parametrize("seed", range(budget(ci=20, soak=80)))
def test_agrees_with_a_search_of_all_places(seed):
    """At once, blocked by spare jobs, or not at all: as trying every place says."""
    history = History(seed, chains=1, pinned=False)
    for _ in range(60):
        history.step(**CALM, **NODES_LOST, other_quota=0.2)
        pool, (state,) = history.rng.choice(POOLS), history.cells._states.values()
        level = history.rng.randint(0, state.shape.node)
        blocked = history.cells.blockers(wants(pool, state.shape.size[level]))
        naive = Naive(state)
        assert (blocked is None) == naive.can_have(pool, level), (pool, level, blocked)
        if blocked is not None:
            in_way = blocked.reason is BlockReason.SPARE
            assert in_way == naive.can_have(pool, level, over_spare=True), (pool, level)


def owned_by(cells, pool):
    """The same cluster with this pool alone, and all nodes well."""
    quotas = tuple(
        QuotaSpec(pool, chain, kind, count)
        for chain, types in cells.quotas()[pool].items()
        for kind, count in types.items()
    )
    tops = []
    for chain in cells._states:
        nodes, wide = (
            [NodeSpec(name) for name in cells._cluster.nodes_of[chain].names],
            NODES[chain],
        )
        tops += [Top(chain, tuple(nodes[i : i + wide])) for i in range(0, len(nodes), wide)]
    types = tuple(kind for chain in cells._states for kind in LINES[chain])
    return Cells(Spec(types, tuple(tops), quotas))


def own_place(cells, job):
    """Where a job is in its pool's own numbers."""
    taken = cells._jobs[job]
    state = taken.state
    return sorted((cell.level, state.number(state.root(cell), cell)) for cell in taken.cells)


@pytest.mark.parametrize("seed", range(budget(ci=30, soak=120)))
def test_every_pool_is_served_as_if_it_were_alone(seed):
    """Over any history, without spare jobs and lost nodes: placed or not, and where of its own."""
    history = History(seed, pinned=False)
    cells, rng = history.cells, history.rng
    alone = {pool: owned_by(cells, pool) for pool in POOLS}
    owners = {}
    for _ in range(120):
        if owners and rng.random() < 0.4:
            job = rng.choice(list(owners))
            cells.free(job)
            alone[owners.pop(job)].free(job)
            continue
        job, request = history.name(), history.asked()
        ours = cells.allocate(job, request)
        mine = alone[request.pool].allocate(job, request)
        assert (ours is None) == (mine is None), request
        if ours is not None:
            owners[job] = request.pool
            assert own_place(cells, job) == own_place(alone[request.pool], job)


@pytest.mark.parametrize("seed", range(budget(ci=15, soak=60)))
def test_once_all_jobs_are_gone_nothing_is_left_of_them(seed):
    """Requests find the same as in an empty cluster of the same health."""
    history = History(seed, pinned=False)
    for _ in range(60):
        history.step(**CALM, node_lost=0.3, node_back=0.2)
    history.all_gone()
    cells = history.cells
    fresh = owned_by(cells, "a")
    fresh.set_quotas(cells.quotas())
    for node, why in cells.nodes().items():
        if why:
            fresh.take_out(node, why)
    for _ in range(40):
        name, request = history.name(), history.asked()
        assert cells.allocate(name, request) == fresh.allocate(name, request)


@pytest.mark.parametrize("seed", range(budget(ci=15, soak=60)))
def test_questions_change_nothing(seed):
    """Nor do requests that are refused: what comes after is the same without them."""
    plain, asked = History(seed), History(seed)
    other = History(seed + 1).rng
    for _ in range(60):
        for history in (plain, asked):
            history.step(**CALM, **NODES_LOST, reservation=1, hold=0.5)
        pool, chain = other.choice(POOLS), other.choice(asked.chains)
        request = wants(pool, *other.choice(WIDTHS), chain=chain)
        if asked.cells.blockers(request) is not None:
            assert asked.cells.allocate("refused", request) is None
    jobs = plain.cells._jobs
    assert jobs.keys() == asked.cells._jobs.keys()
    for job in jobs:
        assert plain.cells.placement(job) == asked.cells.placement(job)


def held_requests(history):
    """Requests within what pools hold back, each beside what it finds without spare jobs."""
    real, alone = history.cells.copy(), history.cells.copy()
    for job, spare in history.cells.jobs().items():
        if spare:
            alone.free(job)
    left = dict(history.held)
    for _ in range(8):
        name, request = history.name(), history.asked()._replace(pin="")
        gpus = sum(real.width(width, request.chain) for width in request.widths)
        if gpus <= left[request.chain, request.pool]:
            mine, ours = alone.allocate(name, request), real.allocate(name, request)
            if mine is not None:
                left[request.chain, request.pool] -= gpus
                yield ours
            elif ours is not None:
                real.free(name)


@pytest.mark.parametrize("seed", range(budget(ci=30, soak=120)))
def test_requests_within_what_is_held_start_at_once(seed):
    history = History(seed)
    history.hold()
    for _ in range(40):
        history.step(**CALM, hold=1.5, node_lost=0.3, node_back=0.3, other_quota=0.2)
        if all(holds.satisfied() for holds in history.holds.values()):
            assert all(outcome is not None for outcome in held_requests(history))


def test_without_reservations_spare_jobs_delay_dedicated_ones():
    """The test above can fail."""
    blocked = 0
    for seed in range(4):
        history = History(seed)
        history.hold()
        for _ in range(30):
            request = history.asked([(1,), (2,), (4,)])._replace(pin="")
            history.cells.lend(history.name(), request)
            blocked += sum(outcome is None for outcome in held_requests(history))
    assert blocked > 10


@pytest.mark.parametrize("seed", range(budget(ci=15, soak=60)))
def test_a_spare_job_never_lies_in_a_buddy_of_a_dedicated_one(seed):
    history = History(seed)
    for _ in range(60):
        history.step(dedicated=5, spare=0, end=4, **NODES_LOST)
        job, request = history.name(), history.asked()._replace(pin="")
        if history.cells.lend(job, request) is not None:
            state = history.cells._states[request.chain]
            for cell in history.cells._jobs[job].cells:
                assert not in_buddy(state, cell)


def in_buddy(state, cell):
    """A cell around it, or it, has a sibling on its node that is a dedicated job's."""
    while cell.level < state.shape.node:
        parent = state.shape.parent(cell)
        if any(state.given[c.level][c.number] for c in state.shape.children(parent)):
            return True
        cell = parent
    return False
