"""The paper's synthetic workloads (appendices A.1 and C), and pieces cut out of a trace (§6.1)."""

import os
import subprocess
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.logs.slice import merged, shortened, slice_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_pools, write_trace
from replay.synthetic.paper import DAY, LOAD, MINUTE, PRESETS, WIDTHS, mean_minutes, synthesize
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.model import Job, Pool
from tests.support.paths import ROOT
from tests.support.shell import sia

pytestmark = pytest.mark.xdist_group("synth")  # in one process, which makes the workloads once

SEEDS = 200

each_preset = pytest.mark.parametrize("name", PRESETS)


@cache
def made(name):
    """The three days of a preset under the first seeds."""
    return [synthesize(PRESETS[name], seed) for seed in range(20)]


def bursts_of(trace):
    """Widths of what one pool's jobs ask for at one instant, in the order of the log."""
    bursts = defaultdict(list)
    for job, _ in trace.arrivals:
        bursts[job.pool, job.submit].append(job.width)
    return bursts


def queues_of(trace):
    """The arrivals of each pool, in order."""
    queues = defaultdict(list)
    for arrival in trace.arrivals:
        queues[arrival.job.pool].append(arrival)
    return queues


def jobs_of(arrivals):
    """When each comes, how wide it is, and how long."""
    return Counter((job.submit, job.width, duration) for job, duration in arrivals)


class Facts(NamedTuple):
    """What a preset made under many seeds."""

    minutes: list[float]
    drawn: Counter
    """How many jobs have this width."""
    loads: list[float]
    """Of each queue of each seed."""


@cache
def facts(name):
    found = Facts([], Counter(), [])
    for seed in range(SEEDS):
        trace, table = synthesize(PRESETS[name], seed)
        found.minutes.extend(duration / MINUTE for _, duration in trace.arrivals)
        found.drawn.update(job.width for job, _ in trace.arrivals)
        queues = queues_of(trace)
        found.loads.extend(load_of(queues[pool.name], pool.quota, days=3) for pool in table.pools)
    return found


def load_of(arrivals, quota, days):
    return sum(job.width * duration for job, duration in arrivals) / (quota * days * DAY)


# The same seed, the same bytes


def written(folder, name, seed):
    trace, table = synthesize(PRESETS[name], seed)
    write_trace(folder / "trace.csv", trace)
    write_pools(folder / "pools.csv", table)
    return (folder / "trace.csv").read_bytes(), (folder / "pools.csv").read_bytes()


@each_preset
def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_log(tmp_path, name):
    log, pools = written(tmp_path, name, 7)
    assert written(tmp_path, name, 7) == (log, pools)
    other_log, other_pools = written(tmp_path, name, 8)
    assert other_log != log
    assert other_pools == pools


def test_no_hash_seed_changes_a_byte():
    script = (
        "from replay.synthetic.paper import PRESETS, synthesize\n"
        "print([synthesize(preset, 7) for preset in PRESETS.values()])"
    )
    other = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": "2", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    # The hash seed of this process is random.
    assert other == f"{[synthesize(preset, 7) for preset in PRESETS.values()]}\n"


def test_a_past_has_other_jobs_of_queues_with_the_same_loads():
    for seed in range(5):
        (now, table), (past, queues) = (
            synthesize(PRESETS["base"], seed, days=60, past=past) for past in (False, True)
        )
        assert queues == table
        ours, theirs = queues_of(now), queues_of(past)
        for pool in table.pools:
            before = load_of(theirs[pool.name], pool.quota, days=60)
            assert load_of(ours[pool.name], pool.quota, days=60) == pytest.approx(before, abs=0.02)
            assert not set(jobs_of(ours[pool.name])) & set(jobs_of(theirs[pool.name]))


# What every workload is like


@each_preset
def test_jobs_come_in_order_with_ids_of_their_own_to_pools_that_exist(name):
    for trace, table in made(name):
        jobs = [job for job, _ in trace.arrivals]
        assert all(a.submit <= b.submit for a, b in pairwise(jobs))
        assert len({job.id for job in jobs}) == len(jobs)
        assert {job.pool for job in jobs} == {pool.name for pool in table.pools}
        assert all(0 <= job.submit <= 3 * DAY for job in jobs)
        assert all(job.submit == round(job.submit) and d == round(d) for job, d in trace.arrivals)


@each_preset
def test_the_number_of_queues_of_8_gpus_follows_the_appendix(name):
    queues = {"more-queues": 8, "fewer-queues": 2}.get(name, 4)
    _, table = made(name)[0]
    assert table == PoolTable([Pool(f"q{i}", 8) for i in range(queues)])


@each_preset
def test_a_burst_is_never_wider_than_its_queue(name):
    """Two that come in one second look like one: 1 of 6,000 bursts."""
    found = [(burst, table) for trace, table in made(name) for burst in bursts_of(trace).values()]
    wider = sum(sum(burst) > table.pools[0].quota for burst, table in found)
    assert wider <= len(found) / 1000


APPENDIX_WIDTHS = {
    "base": (0.7, 0.1, 0.15, 0.05),
    "more-wide": (0.25, 0.25, 0.25, 0.25),
    "fewer-wide": (0.9, 0.033, 0.05, 0.017),
}


@pytest.mark.parametrize("name", APPENDIX_WIDTHS)
def test_widths_are_as_frequent_as_the_appendix_says(name):
    """Over 50,000 jobs: 0.01 is five standard errors, sqrt(0.25 / 50,000) = 0.002."""
    widths = facts(name).drawn
    shares = [widths[width] / widths.total() for width in WIDTHS]
    assert shares == pytest.approx(APPENDIX_WIDTHS[name], abs=0.01)


BASE_DURATIONS = ((0.8, sqrt(10), 100), (0.2, 100, 1000))
APPENDIX_DURATIONS = {
    "more-skewed": ((0.9, sqrt(10), 100), (0.1, 100, 2000)),
    "less-skewed": ((1.0, sqrt(10), 300),),
}


@each_preset
def test_durations_are_as_frequent_as_the_appendix_says(name):
    """Each part has its share of the jobs, and so has each quarter of it.

    Jobs are independent: 5 standard errors of the share, for each of some 70 numbers.
    """
    minutes = sorted(facts(name).minutes)
    count = len(minutes)
    for share, least, most in APPENDIX_DURATIONS.get(name, BASE_DURATIONS):
        for quarter in range(4):
            low = least + (most - least) * quarter / 4
            high = low + (most - least) / 4
            found = (bisect_right(minutes, high) - bisect_right(minutes, low)) / count
            error = sqrt(share / 4 * (1 - share / 4) / count)
            rounding = share / MINUTE / (most - least)  # durations are whole seconds
            assert found == pytest.approx(share / 4, abs=5 * error + rounding)
    longest = max(most for _, _, most in APPENDIX_DURATIONS.get(name, BASE_DURATIONS))
    assert sqrt(10) - 1 / MINUTE < min(minutes)
    assert max(minutes) <= longest


def test_all_mixes_of_durations_have_the_same_mean():
    """As the appendix says; it rounds (151.3, 151.4 and 151.6 minutes)."""
    means = {mean_minutes(preset.durations) for preset in PRESETS.values()}
    assert len(means) == 3
    assert max(means) < 1.003 * min(means)


@each_preset
def test_each_queue_has_a_load_of_its_own_as_near_to_the_bounds_as_whole_bursts_come(name):
    """Drawn from U(0.6, 0.95), mean 0.775, before the factor, and rounded to whole bursts.

    The mean over all queues and seeds is within 4 of its standard errors, 0.5 to 0.7 % of it.
    """
    loads, factor = facts(name).loads, {"higher-load": 1.05, "lower-load": 0.75}.get(name, 1.0)
    low, high = (bound * factor for bound in LOAD)
    longest = max(most for _, _, most in PRESETS[name].durations) * MINUTE
    burst = longest / (3 * DAY)  # eight GPUs of eight for so long
    assert all(low - burst / 2 <= load <= high + burst / 2 for load in loads)
    within = sum(low - 0.01 < load < high + 0.01 for load in loads)
    assert within / len(loads) > 0.9
    assert max(loads) - min(loads) > 0.9 * (high - low)
    error = stdev(loads) / sqrt(len(loads))
    assert fmean(loads) == pytest.approx(0.775 * factor, abs=4 * error)


@cache
def long_queues():
    """The queues of a base workload of 300 days under four seeds."""
    traces = [synthesize(PRESETS["base"], seed, days=300)[0] for seed in range(4)]
    return [queue for trace in traces for queue in queues_of(trace).values()]


def test_over_many_bursts_each_queue_has_the_load_that_was_drawn():
    """A burst is up to 8,000 GPU minutes of 3.5 million: 0.2 %."""
    loads = [load_of(queue, 8, days=300) for queue in long_queues()]
    assert len(set(loads)) == 16
    assert all(LOAD[0] - 0.002 < load < LOAD[1] + 0.002 for load in loads)


def test_bursts_are_a_poisson_process():
    """Gaps are exponential: their spread is their mean, and 1 - 1/e of them are below it.

    Of some 4,000 gaps both are known to 1.6 % and 0.8 %; the bounds are five times that.
    """
    for queue in long_queues():
        times = sorted({job.submit for job, _ in queue})
        gaps = [b - a for a, b in pairwise(times)]
        mean = fmean(gaps)
        assert len(gaps) > 3000
        assert stdev(gaps) / mean == pytest.approx(1, abs=0.08)
        assert sum(gap < mean for gap in gaps) / len(gaps) == pytest.approx(0.632, abs=0.04)


# The variations


def test_the_presets_are_the_base_workload_and_eight_variations():
    assert len(PRESETS) == 9
    assert next(iter(PRESETS)) == "base"


@pytest.mark.parametrize(
    ("name", "aspect", "value"),
    [
        ("higher-load", "load_factor", 1.05),
        ("lower-load", "load_factor", 0.75),
        ("more-queues", "queues", 8),
        ("fewer-queues", "queues", 2),
        ("more-skewed", "durations", APPENDIX_DURATIONS["more-skewed"]),
        ("less-skewed", "durations", APPENDIX_DURATIONS["less-skewed"]),
        ("more-wide", "widths", APPENDIX_WIDTHS["more-wide"]),
        ("fewer-wide", "widths", APPENDIX_WIDTHS["fewer-wide"]),
    ],
)
def test_each_variation_differs_from_the_base_in_one_aspect(name, aspect, value):
    base = PRESETS["base"]
    assert getattr(base, aspect) != value
    assert PRESETS[name] == base._replace(**{aspect: value})


def test_the_base_is_that_of_the_appendix():
    base = PRESETS["base"]
    assert (base.queues, base.queue_size, base.load_factor) == (4, 8, 1.0)
    assert base.durations == BASE_DURATIONS
    assert base.widths == APPENDIX_WIDTHS["base"]


@pytest.mark.parametrize(("less", "more"), [("lower-load", "base"), ("base", "higher-load")])
def test_under_a_higher_load_there_are_the_same_jobs_and_some_more(less, more):
    for (few, _), (many, _) in zip(made(less), made(more), strict=True):
        others = queues_of(many)
        for pool, queue in queues_of(few).items():
            assert jobs_of(queue) <= jobs_of(others[pool])
        assert len(few.arrivals) < len(many.arrivals)


def test_more_and_fewer_queues_share_their_first_ones():
    for (few, _), (base, _), (many, _) in zip(
        *[made(name) for name in ("fewer-queues", "base", "more-queues")], strict=True
    ):
        two, four, eight = queues_of(few), queues_of(base), queues_of(many)
        assert two == {name: four[name] for name in ("q0", "q1")}
        assert four == {name: eight[name] for name in ("q0", "q1", "q2", "q3")}


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), 1e9, 1e-9])
def test_no_days_and_too_many_are_refused_in_one_line(days):
    with pytest.raises(UserError, match=r"^--days [^\n]+; (give|make) [^\n]+$"):
        synthesize(PRESETS["base"], 0, days)


# Pieces


def arrival(job_id, pool, submit, width=1, duration=1.0):
    return Arrival(Job(job_id, pool, float(submit), width, f"user of {job_id}"), float(duration))


MONTH = Trace(
    [
        arrival("early", "a", 0),
        arrival("first", "a", 100, 2, 50),
        arrival("other", "b", 100, 1, 7),
        arrival("middle", "c", 150, 4, 100),
        arrival("last", "a", 199.5, 1, 300),
        arrival("too late", "a", 200),
    ],
    ("state",),
    {"first": ("done",), "other": ("failed",)},
    Counter(),
    ["rows have been sorted"],
)
CLUSTER = PoolTable(
    [Pool("c", 8, "v100"), Pool("a", 4), Pool("b", 16, "v100", share=False)],
    columns=("nodes",),
    extras={("a", 0.0): ("1",), ("b", 0.0): ("2",), ("c", 0.0): ("1",)},
)


def test_a_piece_begins_at_second_0_and_ends_before_its_end():
    piece, _ = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["a", "c"])
    assert piece.arrivals == [
        Arrival(Job("first", "a", 0.0, 2, "user of first"), 50.0),
        Arrival(Job("middle", "c", 50.0, 4, "user of middle"), 100.0),
        Arrival(Job("last", "a", 99.5, 1, "user of last"), 300.0),
    ]
    assert piece.columns == ("state",)
    assert piece.extras == {"first": ("done",)}


def test_a_piece_can_have_shorter_and_narrower_jobs_in_one_pool_of_any_size():
    piece, _ = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["a", "c"])
    short, table = merged(shortened(piece, longest=60.0, widest=2), 6)
    assert short.arrivals == [
        Arrival(Job("first", "all", 0.0, 2, "user of first"), 50.0),
        Arrival(Job("last", "all", 99.5, 1, "user of last"), 60.0),
    ]
    assert table.pools == [Pool("all", 6)]
    assert short.dropped["wider than 2 GPUs"] == 1
    assert "2 run times cut at 1 m" in short.notes
    with pytest.raises(UserError, match="--widest 0: all jobs of the piece are wider"):
        shortened(piece, widest=0)


def test_quotas_are_scaled_to_the_jobs_of_a_piece_as_they_are_cut(tmp_path):
    (tmp_path / "log.csv").write_text(
        "job_id,pool,submit,width,duration\nlong,a,0,1,9000\nwide,a,10,8,900\nshort,a,20,2,900\n"
    )
    (tmp_path / "pools.csv").write_text("pool,quota\na,8\n")
    done = sia("trace", "slice", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
               "--from", 0, "--length", "15m", "--load", 1, "--longest", "15m", "--widest", 2,
               "--out", tmp_path / "piece")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "piece" / "pools.csv").read_text().splitlines()[1].startswith("a,3")


def test_a_piece_with_scaled_quotas_says_where_it_begins_and_which_run_times_were_cut(tmp_path):
    (tmp_path / "log.csv").write_text(
        "job_id,pool,submit,width,duration\nearly,a,0,1,60\nlong,a,4000,1,9000\n"
    )
    (tmp_path / "pools.csv").write_text("pool,quota\na,8\n")
    done = sia("trace", "slice", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
               "--from", "1h", "--length", "1h", "--load", 1, "--longest", "15m",
               "--out", tmp_path / "piece")  # fmt: skip
    assert done.stdout.splitlines()[1:] == [
        "note: second 0 of this slice is second 3,600 of the log",
        "note: 1 run time cut at 15 m",
    ]


def test_jobs_outside_a_piece_are_counted_by_reason():
    piece, _ = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["a", "c"])
    assert piece.dropped == Counter(
        {"of another pool": 1, "submitted outside of the piece": 2},
    )


def test_a_piece_keeps_its_pools_as_they_are():
    _, table = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["b", "c"])
    assert table.pools == [Pool("c", 8, "v100"), Pool("b", 16, "v100", share=False)]
    assert table.extras == {("b", 0.0): ("2",), ("c", 0.0): ("1",)}
    assert table.columns == ("nodes",)


def test_quotas_of_a_piece_make_the_load_that_was_asked_for():
    """a: (2·50 + 1·300) / (0.5·100) = 8; b: 7 / 70 is less than a GPU; c: 400 / 60 = 6.67."""
    loads = {"a": 0.5, "b": 0.7, "c": 0.6}
    _, table = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["a", "b", "c"], loads=loads)
    assert table.pools == [Pool("c", 7, "v100"), Pool("a", 8), Pool("b", 1, "v100", share=False)]
    assert table.changes == []


def test_jobs_wider_than_their_scaled_pool_stay_in_the_piece():
    piece, table = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["c"], loads={"c": 4.0})
    assert table.pools == [Pool("c", 1, "v100")]
    assert [job.width for job, _ in piece.arrivals] == [4]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 64), st.integers(1, 500)), min_size=1),
    st.floats(0.1, 2),
)
def test_no_other_whole_quota_is_nearer_to_the_load(rows, load):
    rows.sort()
    trace = Trace([arrival(f"{i}", "a", *row) for i, row in enumerate(rows)])
    _, table = slice_trace(trace, CLUSTER, begin=0, end=100, pools=["a"], loads={"a": load})
    gpus = sum(width * duration for _, width, duration in rows) / (load * 100)
    quota = table.pools[0].quota
    assert quota == 1 or abs(quota - gpus) <= 0.5 + 1e-9
    assert quota >= 1
    assert gpus < 1.5 + 1e-9 or quota > 1


def test_an_unknown_pool_is_refused_and_the_known_ones_are_named():
    with pytest.raises(UserError, match=r"^--pick: no pool 'd'\. The pools are a, b, c\.$"):
        slice_trace(MONTH, CLUSTER, begin=0, end=200, pools=["a", "d"])


def test_a_piece_without_a_job_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"^no job of b was submitted between 101 s and 200 s.*"):
        slice_trace(MONTH, CLUSTER, begin=101, end=200, pools=["b"])


def test_quotas_that_vary_begin_as_they_are_at_the_cut_and_change_when_they_did():
    table = PoolTable(
        [Pool("a", 1), Pool("b", 9)],
        [
            PoolChanged(50.0, "a", 2),
            PoolChanged(100.0, "a", 3),
            PoolChanged(120.0, "b", 8),
            PoolChanged(150.0, "a", 4),
            PoolChanged(199.0, "a", 0),
            PoolChanged(200.0, "a", 5),
        ],
    )
    _, cut = slice_trace(MONTH, table, begin=100, end=200, pools=["a"])
    assert cut.pools == [Pool("a", 3)]
    assert cut.changes == [PoolChanged(50.0, "a", 4), PoolChanged(99.0, "a", 0)]


def quota_at(table, name, time):
    return [quota for begin, quota in table.quotas()[name] if begin <= time][-1]


@settings(deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(1, 30), st.sampled_from("ab")), st.integers(0, 9)),
    st.integers(0, 20),
    st.integers(1, 20),
)
def test_at_every_second_of_a_piece_its_pools_are_as_large_as_they_were(steps, begin, length):
    changes = [PoolChanged(float(t), name, quota) for (t, name), quota in sorted(steps.items())]
    table = PoolTable([Pool("a", 5), Pool("b", 6)], changes)
    trace = Trace([arrival("x", "a", begin)])
    _, cut = slice_trace(trace, table, begin=begin, end=begin + length, pools=["b", "a"])
    for second in range(length):
        for name in "ab":
            assert quota_at(cut, name, second) == quota_at(table, name, begin + second)
    assert all(0 < change.time < length for change in cut.changes)


def test_cutting_changes_neither_the_trace_nor_the_pools():
    jobs, notes = list(MONTH.arrivals), list(MONTH.notes)
    piece, _ = slice_trace(MONTH, CLUSTER, begin=100, end=200, pools=["a"], loads={"a": 0.9})
    piece.notes.append("a word about the piece only")
    assert MONTH.arrivals == jobs
    assert MONTH.notes == notes
    assert CLUSTER.pools[1] == Pool("a", 4)


def test_a_piece_does_not_repeat_which_day_second_0_of_the_whole_was():
    whole = Trace(MONTH.arrivals, notes=["second 0 is 2020-04-02 00:00:00, local time"])
    piece, _ = slice_trace(whole, CLUSTER, begin=100, end=200, pools=["a"])
    assert not any("second 0 is 2020-04-02 00:00:00" in note for note in piece.notes)
