"""A core that was dumped and restored decides from then on as the undisturbed one does."""

from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from cells.cells import Cells
from cells.layout.spec import QuotaSpec, Spec
from sia import Core, Job, Pool
from sia.core.snapshot import VERSION, decode, dump, encode, restore
from sia.decisions import StartJob
from sia.events import (
    ForecastUpdated,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    NodeOut,
    PoolChanged,
)
from sia.model import Load
from sia.policies import load, names
from sia.policies.chronus.policy import Chronus
from sia.policies.deadlines.edf import EarliestDeadline
from sia.policies.deadlines.genie import Genie
from sia.policies.deadlines.sigma import ThreeSigma
from sia.policies.deadlines.yarn import CapacityScheduler
from sia.policies.jvu.policy import Jvu
from sia.policies.jvu.prio import Prio
from sia.policies.preemptive.emmfs import ElasticMaxMin
from sia.policies.preemptive.las import Las
from sia.policies.preemptive.srtf import Srtf
from sia.policies.queues.easy import Easy
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.gssf import GlobalSsf
from sia.policies.queues.hived import HiveD
from sia.policies.queues.kueue import KueueBestEffort, KueueStrict
from sia.policies.queues.mmfs import MaxMin
from sia.policies.queues.sjf import Sjf
from sia.policies.queues.ssf import Ssf
from sia.policies.queues.themis import Themis
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import SiaRecall
from sia.policies.sia.reclaim import SiaReclaim
from sia.policies.sia.vc import SiaVc
from tests.support.budget import budget
from tests.support.builders import SMALL, pools
from tests.support.clusters.cells import LINES, cluster, top
from tests.support.clusters.troubled import step, troubled, troubled_in_cells
from tests.support.cores import IN_ROUNDS, POLICIES, PREEMPTING

ROUNDS = budget(ci=6, soak=40)
ALL = [
    *POLICIES,
    *PREEMPTING,
    SiaRecall,
    SiaReclaim,
    KueueStrict,
    KueueBestEffort,
    Chronus,
    Jvu,
    Prio,
    EarliestDeadline,
    ThreeSigma,
    Genie,
    CapacityScheduler,
    *IN_ROUNDS,
]
IN_CELLS = [Fcfs, Ssf, Sjf, GlobalSsf, MaxMin, HiveD, Sia, SiaRecall, SiaReclaim]


def new_policy(policy):
    """Of the same class, with the same options."""
    return type(policy)(policy.params)


def again(core):
    """By way of its bytes."""
    data = encode(dump(core))
    made = restore(decode(data), new_policy(core.policy))
    assert encode(dump(made)) == data
    made.check()
    return made


def part(history, rng, renew=again):
    """Whether the same events make another history of a core that is restored now and then."""
    core = history.first.copy()
    for now, events, answer in history.steps:
        if rng.random() < 0.2:
            try:
                core = renew(core)
            except ValueError:
                return True
        if step(core, now, events)[1] != answer:
            return True
    return renew is again and encode(dump(core)) != encode(dump(history.core))


@pytest.mark.parametrize("policy", ALL)
def test_a_restored_core_decides_as_the_undisturbed_one(policy):
    for seed in range(ROUNDS):
        assert not part(troubled(policy, Random(seed)), Random(seed)), f"seed {seed}"


@pytest.mark.parametrize("policy", IN_CELLS)
def test_a_restored_core_places_as_the_undisturbed_one(policy):
    for seed in range(ROUNDS):
        assert not part(troubled_in_cells(policy, Random(seed)), Random(seed)), f"seed {seed}"


def test_no_policy_is_left_out():
    installed = {load(name) for name in names()}
    assert installed <= {*ALL}
    assert {policy for policy in installed if policy.places} <= {*IN_CELLS}


def test_the_drawn_histories_contain_every_kind_of_event():
    """Or else the two tests above would show little."""
    said = b"".join(
        step.answer
        for policy in (Srtf, ElasticMaxMin, SiaRecall)
        for seed in range(ROUNDS)
        for step in troubled(policy, Random(seed)).steps
    )
    for kind in ("StartJob", "PreemptJob", "ResizeJob", "MoveLoan", "Refused", "ValueError"):
        assert said.count(kind.encode()) > ROUNDS // 10, kind


def changed(core, **changes):
    """Restored of a snapshot that says something else."""
    kept = dump(core)
    kept = replace(kept, **{field: change(kept) for field, change in changes.items()})
    return restore(kept, type(core.policy)())


def backwards(kept):
    return tuple(replace(pool, lent_to=pool.lent_to[::-1]) for pool in kept.pools)


def last_loan_first(kept):
    return tuple(replace(job, loans=job.loans[::-1]) for job in kept.jobs)


def cells_with(**changes):
    return lambda kept: replace(kept.cells, **changes)


@pytest.mark.parametrize(
    ("policy", "story", "changes", "first"),
    [
        pytest.param(Fcfs, troubled, {"dirty": lambda _: ()}, 17, id="who changed"),
        pytest.param(Sia, troubled, {"wake": lambda _: None}, 0, id="when it wakes"),
        pytest.param(MaxMin, troubled, {"pools": backwards}, 46, id="order of a pool's loans"),
        pytest.param(ElasticMaxMin, troubled, {"jobs": last_loan_first}, 12, id="of a job's"),
        pytest.param(
            MaxMin, troubled_in_cells, {"cells": cells_with(placeless=())}, 61,
            id="who lacked cells",
        ),
    ],
)  # fmt: skip
def test_a_snapshot_that_omits_something_is_detected(policy, story, changes, first):
    """By some history: `first` is the seed of one that did, and all others are tried after it."""

    def renew(core):
        return changed(core, **changes)

    seeds = (first, *range(300))
    assert any(part(story(policy, Random(seed)), Random(seed), renew) for seed in seeds)


@pytest.mark.parametrize(
    ("policy", "story"),
    [
        (Las, troubled),
        (ElasticMaxMin, troubled),
        (Themis, troubled),
        (Sia, troubled),
        (Sia, troubled_in_cells),
        (SiaVc, troubled),
    ],
)
def test_a_policy_that_omits_its_state_is_detected(policy, story, monkeypatch):
    def resume(self, state, memory):
        self.attach(state)

    def seen(seed):
        try:
            return part(story(policy, Random(seed)), Random(seed), changed)
        except KeyError:  # it hears of a job that it knows nothing of
            return True

    monkeypatch.setattr(policy, "resume", resume)
    assert any(map(seen, range(300)))


def submitted(now, job_id, width=1, pool="a", run_time=100.0):
    return JobSubmitted(now, Job(job_id, pool, now, width), run_time)


def started(decisions):
    return [decision.job_id for decision in decisions if isinstance(decision, StartJob)]


@pytest.mark.parametrize("forgetful", [False, True])
def test_cells_freed_before_an_impossible_event_are_considered(forgetful):
    quotas = {"a": {"node": 1}, "b": {"node": 1}}
    cells = cluster(racks=2, nodes=1, quotas=quotas, bad=["n1"])
    core = Core([Pool("a", 8), Pool("b", 8)], Fcfs(), SMALL, cells)
    core.step(0.0, [submitted(0.0, "first", 8)])
    assert core.step(1.0, [submitted(1.0, "second", 8, "b")]) == []
    with pytest.raises(ValueError, match="nobody"):
        core.step(2.0, [JobFinished(2.0, "first"), JobCancelled(2.0, "nobody")])
    forget = {"cells": cells_with(came_free=False)} if forgetful else {}
    assert started(changed(core, **forget).step(3.0, [])) == ([] if forgetful else ["second"])


def test_groups_with_a_job_that_found_no_room_are_considered_again():
    core = Core(pools(a=1, b=1), Srtf(), SMALL)
    core.policy._reranked[core.state.groups[0]] = None
    assert again(core).policy.memory() == ["a"]
    assert again(core).policy.wake(1.0) == 5.0


def two_chains():
    """A pool on racks and one on servers, each in a group of its own."""
    quotas = (QuotaSpec("a", "rack", "rack", 1), QuotaSpec("b", "server", "server", 2))
    tops = (top("rack", "r"), top("server", "s"), top("server", "t"))
    return Cells(Spec((*LINES["rack"], *LINES["server"]), tops, quotas))


def test_a_pool_that_owns_nothing_any_more_gets_cells_of_its_chain_again():
    core = Core([Pool("a", 12, "x"), Pool("b", 8, "y")], Fcfs(), SMALL, two_chains())
    core.step(0.0, [PoolChanged(0.0, "b", 0)])
    core = again(core)
    back = [PoolChanged(1.0, "b", 4, {"server": {"server": 1}}), submitted(1.0, "next", 2, "b")]
    assert started(core.copy().step(1.0, back)) == ["next"]
    lost = changed(core, cells=lambda kept: replace(kept.cells, chains={}))
    with pytest.raises(ValueError, match="stay in its group's chain"):
        lost.step(1.0, back)


def lively():
    """Pool a's cells are kept for who ran elsewhere, one waits for them; b has a guest of a."""
    cells = cluster(racks=1, nodes=3, quotas={"a": {"node": 1}, "b": {"node": 1}})
    owned = [Pool("a", 8), Pool("b", 8), Pool("c", 0, share=False)]
    options = replace(SMALL, exact=True, no_lending=frozenset({("a", 5.0)}))
    core = Core(owned, Sia(), options, cells)
    core.step(0.5, [submitted(0.5, "own", 8), submitted(0.5, "gone", 2, run_time=5.0)])
    core.step(1.0, [submitted(1.0, "other", 3, "b"), submitted(1.0, "guest", 1, run_time=15.0)])
    core.step(5.5, [JobFinished(5.5, "gone"), NodeOut(5.5, "n2", "drained")])
    core.step(10.5, [JobFinished(10.5, "own"), ForecastUpdated(10.5, [Load("b", 1, 2)])])
    core.step(11.0, [submitted(11.0, "wide", 8)])
    return core


GOLDEN = (
    '{"version":3,"policy":"Sia","params":{},"options":{"windows":[5.0,20.0,100.0],"tick":5.0'
    ',"slack":1.0,"spare_priority":{},"resume_cost":0.0,"stops_per_hour":0,"grace":0.0,"exact'
    '":true,"owners":false,"no_lending":[["a",5.0]]},"now":11.0,"wake":15.0,"arrivals":5,"len'
    'ding":true,"pools":[{"pool":{"name":"a","quota":8,"group":"","share":true,"lend_limit":n'
    'ull,"borrow_limit":null,"weight":1.0},"load":[0,0,0],"lent_to":[]},{"pool":{"name":"b","'
    'quota":8,"group":"","share":true,"lend_limit":null,"borrow_limit":null,"weight":1.0},"lo'
    'ad":[0,2,0],"lent_to":["guest"]},{"pool":{"name":"c","quota":0,"group":"","share":false,'
    '"lend_limit":null,"borrow_limit":null,"weight":1.0},"load":[0,0,0],"lent_to":[]}],"jobs"'
    ':[{"job":{"id":"other","pool":"b","submit":1.0,"width":3},"run_time":100.0,"arrival":3,"'
    'stream":"dedicated","attempt":1,"start":1.0,"done":0.0,"overhead":0.0,"speed":1.0,"pace"'
    ':1.0},{"job":{"id":"guest","pool":"a","submit":1.0,"width":1},"run_time":15.0,"arrival":'
    '4,"stream":"spare","attempt":1,"start":1.0,"done":0.0,"overhead":0.0,"speed":1.0,"loans"'
    ':[["b",1]],"pace":1.0},{"job":{"id":"wide","pool":"a","submit":11.0,"width":8},"run_time'
    '":100.0,"arrival":5}],"dirty":[],"overdrawn":[],"memory":{"turns":{"away":[{"job":{"id":'
    '"gone","pool":"a","submit":0.5,"width":2},"job_id":"gone","ran":5.0,"since":10.5},{"job"'
    ':null,"job_id":"guest","ran":null,"since":10.5}],"queues":{"a":[["wide",5]],"b":[]}},"un'
    'covered":[]},"cells":{"cells":{"spec":{"types":[{"name":"gpu","child":"","count":1,"node'
    '":false},{"name":"pair","child":"gpu","count":2,"node":false},{"name":"quad","child":"pa'
    'ir","count":2,"node":false},{"name":"node","child":"quad","count":2,"node":true},{"name"'
    ':"rack","child":"node","count":3,"node":false}],"tops":[{"type":"rack","nodes":[{"name":'
    '"n0","gpus":[],"bad":false},{"name":"n1","gpus":[],"bad":false},{"name":"n2","gpus":[],"'
    'bad":false}]}],"quotas":[{"pool":"a","chain":"rack","type":"node","count":1},{"pool":"b"'
    ',"chain":"rack","type":"node","count":1}],"pinned":[]},"pools":["a","b","c"],"zones":["a'
    '","b","c"],"out":[["n2","drained"]],"gone":[],"bound":[["rack","a",[3,0],0],["rack","b",'
    '[3,2],0]],"tenants":[["other","rack",[3],[[2,4]],false,false],["guest","rack",[1],[[0,10'
    ']],true,false],["\\u0000kept for gone","rack",[2],[[1,0]],false,false],["\\u0000kept for'
    ' guest","rack",[1],[[0,2]],false,false]]},"chains":{"a":"rack","b":"rack","c":"rack"},"c'
    'ame_free":false,"placeless":[]},"retry":null,"requests":0,"open_request":false}'
)
"""Of `lively`."""


def test_the_snapshot_format_is_unchanged():
    """Where this fails, `VERSION` needs another number: old snapshots would be misread."""
    assert encode(dump(lively())).decode() == GOLDEN
    assert VERSION == 3
    core = restore(decode(GOLDEN.encode()), Sia())
    core.step(16.0, [JobFinished(16.0, "guest")])
    assert core.policy.due() == 25.5, "cells are kept for 15 seconds from 10.5 on"
    assert started(core.step(25.5, [])) == ["wide"]


def plain(snapshot):
    """As lists and dicts, to be changed at will."""
    return msgspec.json.decode(encode(snapshot))


def put(value, *path):
    """Another value somewhere in a snapshot."""

    def change(kept):
        for key in path[:-1]:
            kept = kept[key]
        kept[path[-1]] = value(kept[path[-1]]) if callable(value) else value

    return change


def drop(*path):
    return put(lambda rows: rows[1:], *path)


def twice(*path):
    return put(lambda rows: [rows[0], *rows], *path)


OTHER, GUEST, WIDE = range(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(1, "version"), "snapshot version 1 is not supported"),
        (put("Fcfs", "policy"), "the snapshot is of policy Fcfs, not Sia"),
        (put({"newer": 1}, "params"), "the snapshot is of Sia with options {'newer': 1}, not {}"),
        (put(1, "more"), "unknown field `more`"),
        (put(None, "jobs", 0, "start"), "Expected `float`, got `null`"),
        (twice("pools"), "duplicate pool 'a'"),
        (put(-1, "pools", 0, "pool", "quota"), "quota must be 0 to"),
        (put(9, "pools", 0, "pool", "quota"), "its cells have 8 GPUs, but the pool's quota is 9"),
        (drop("pools", 0, "load"), "load must have one value of at least 0 per window"),
        (put("x", "jobs", OTHER, "job", "pool"), "job other: no pool 'x'"),
        (twice("jobs"), "job other is listed twice or not in order"),
        (put(4, "arrivals"), "job wide is listed twice or not in order"),
        (put(0, "jobs", WIDE, "job", "width"), "job wide: width must be 1 to"),
        (put(-1.0, "jobs", WIDE, "run_time"), "job wide: run time must be finite"),
        (put(12.0, "jobs", OTHER, "start"), "job other: times"),
        (put(0, "jobs", OTHER, "attempt"), "job other: width, attempt or overhead"),
        (put(0.0, "jobs", OTHER, "speed"), "contradicts itself"),
        (put([["b", 2]], "jobs", GUEST, "loans"), "job guest: loans do not add up"),
        (put([["b", 1]], "jobs", OTHER, "loans"), "job other: loans do not add up"),
        (
            put([["x", 1]], "jobs", GUEST, "loans"),
            "job guest: invalid or duplicate loan of 1 GPUs by 'x'",
        ),
        (put([["c", 1]], "jobs", GUEST, "loans"), "no loan or a duplicate loan to job guest"),
        (put("dedicated", "jobs", WIDE, "stream"), "job wide: width, attempt"),
        (put([], "pools", 1, "lent_to"), "contradicts itself"),
        (put(["wide"], "pools", 0, "lent_to"), "pool a: no loan or a duplicate loan to job wide"),
        (lambda kept: kept.update(out={"a": 1}), "GPUs out must be at least 0"),
        (put(["x"], "dirty"), "no pool 'x'"),
        (put(["x"], "overdrawn"), "no pool 'x'"),
        (put(["x"], "memory", "uncovered"), "no pool 'x'"),
        (put(None, "memory", "turns"), "virtual queue if and only if"),
        (put({}, "memory", "turns", "queues"), "contradicts itself"),
        (drop("memory", "turns", "away"), "contradicts itself"),
        (put(3.0, "memory", "turns", "away", 1, "ran"), "job guest is away but does not run"),
        (put(None, "cells"), "virtual queue if and only if"),
        (put([[0, 16]], "cells", "cells", "tenants", 1, 3), "spare job is in the cells of other"),
        (put([[0, 2]], "cells", "cells", "tenants", 2, 3), "cells do not match its widths"),
        (put([[2, 4]], "cells", "cells", "tenants", 3, 3), "cells do not match its widths"),
        (put([[0, 18]], "cells", "cells", "tenants", 3, 3), "cell .0, 18. is not free"),
        (twice("cells", "cells", "tenants"), "'other' already has cells"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(change, message):
    kept = plain(dump(lively()))
    change(kept)
    with pytest.raises(ValueError, match=message):
        restore(decode(msgspec.json.encode(kept)), Sia())


def spots(kept, path=()):
    """Paths to all values of a snapshot."""
    rows = kept.items() if isinstance(kept, dict) else enumerate(kept)
    for key, value in rows:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from spots(value, (*path, key))


NUMBERS = (0, 1, -1, 2, 7, 10**9, 10**30, 0.5, -3.0, 1e300)
ODD = (*NUMBERS, None, True, "", "a", "x", "own", [], {}, [[]])


@pytest.mark.parametrize("policy", [Las, Srtf, ElasticMaxMin, Themis, SiaVc, Easy, SiaRecall])
def test_a_corrupted_snapshot_is_refused_or_keeps_all_invariants(policy):
    """No other error, and `check` finds nothing."""
    refused = 0
    for seed in range(10):
        rng = Random(seed)
        kept = dump(troubled(policy, rng).core)
        refused += sum(is_refused(broken(kept, rng), policy) for _ in range(20))
    assert refused > 50


def test_a_snapshot_with_corrupted_cells_is_refused_or_keeps_all_invariants():
    rng = Random(0)
    assert sum(is_refused(broken(dump(lively()), rng), Sia) for _ in range(500)) > 100


def broken(snapshot, rng):
    kept = plain(snapshot)
    put(rng.choice(ODD), *rng.choice(list(spots(kept))))(kept)
    return msgspec.json.encode(kept)


def is_refused(data, policy):
    try:
        core = restore(decode(data), policy())
    except ValueError:
        return True
    core.check()
    return False


def test_a_policy_without_support_for_cells_is_refused():
    kept = replace(dump(lively()), policy="Easy", memory=None)
    with pytest.raises(ValueError, match="Easy does not support cells"):
        restore(kept, Easy())


def test_two_groups_may_have_the_same_name():
    owned = [Pool("p", 1, share=False), Pool("q", 1, "p alone"), Pool("r", 1, "p alone")]
    made = again(Core(owned, Fcfs(), SMALL))
    names = [[pool.name for pool in group.pools] for group in made.state.groups]
    assert names == [["p"], ["q", "r"]]


def test_a_snapshot_shares_nothing_with_its_core():
    for seed in range(10):
        for policy in (Las, Themis, ElasticMaxMin, SiaVc, Sia):
            history = troubled(policy, Random(seed))
            core = history.first.copy()
            half = len(history.steps) // 2
            for now, events, _ in history.steps[:half]:
                step(core, now, events)
            kept = dump(core)
            before = encode(kept)
            made = restore(kept, new_policy(core.policy))
            for now, events, _ in history.steps[half:]:
                step(core, now, events)
                step(made, now, events)
            assert encode(kept) == before


def test_bytes_are_the_same_whatever_the_hash_seed():
    pairs = frozenset((name, window) for name in "abcdef" for window in SMALL.windows)
    core = Core(pools(a=1), Fcfs(), replace(SMALL, no_lending=pairs))
    assert plain(dump(core))["options"]["no_lending"] == sorted(map(list, pairs))
