"""Rows of time series, in both databases."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.doors.views.series import table
from daemon.doors.views.series.sampler import Gathered, store
from daemon.doors.views.series.sums import Key, Sums, total
from daemon.journal.journal import JournalEntry
from daemon.journal.recovery import recover
from daemon.model.account import Booked, Verdict
from daemon.model.inputs import Tick
from daemon.runtime.clock import Anchor
from tests.support.daemons.daemons import setup
from tests.support.servers.databases import InFile, OnServer

POOL = Key("Pool \u00e9")
NOON = 36_000.0


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def kept(request, tmp_path):
    """A database of each supported kind."""
    if request.param == "sqlite":
        return InFile(tmp_path)
    return OnServer(request.getfixturevalue("postgres"), "series")


def one(time, value=1.0, step=30, key=POOL):
    """A sample of a pool in which one GPU is idle, or more."""
    sums = Sums(looks=1)
    sums.gauges[4] = value
    return {(step, table.period(step, time), key): sums}


def test_rows_added_twice_to_a_period_are_summed(kept):
    with closing(kept.journal()) as journal:
        table.add(journal, one(NOON), 3)
        table.add(journal, one(NOON + 29.0, 5.0) | one(NOON + 30.0, 7.0), 4)
        assert table.marks(journal) == (4, {300: 0, 3600: 0})
        rows = table.read(journal, POOL, 30, NOON)
        found = table.buckets(rows, 30)
        assert [(at, sums.gauge("idle")) for at, sums in found] == [(36_000, 3.0), (36_030, 7.0)]


def test_the_rows_of_a_user_are_read_over_all_pools(kept):
    with closing(kept.journal()) as journal:
        for pool in ("a", "b"):
            table.add(journal, one(NOON, 2.0, 300, Key(pool, "\u202eann")), 0)
        table.add(journal, one(NOON, 2.0, 300, Key("a", "bob")), 0)
        rows = table.read(journal, Key("", "\u202eann"), 300, NOON)
        assert [(row.pool, row.time) for row in rows] == [("a", 36_000), ("b", 36_000)]


def test_verdicts_become_rows_with_their_users(kept):
    with closing(kept.journal()) as journal:
        recover(journal, setup(a=3))
        verdict = Verdict("j", "a", 1, NOON, NOON + 5.0, NOON + 9.0, NOON + 65.0)
        for seq, now in ((1, NOON + 10.0), (2, NOON + 400.0)):
            booked = Booked([verdict], [])
            entry = JournalEntry(seq, Anchor("", 0.0, now), [Tick()], (), booked=booked)
            journal.commit(entry)
        store(journal, Gathered(), NOON + 3600.0)
        found = table.buckets(table.read(journal, Key("a"), 300, NOON), 300)
        assert [(at, sums.gain.gained) for at, sums in found] == [(36_000, 60.0), (36_300, 60.0)]
        assert table.marks(journal)[0] == 2


def test_only_rows_that_have_expired_are_pruned(kept):
    with closing(kept.journal()) as journal:
        for i in range(10):
            table.add(journal, one(NOON + 30.0 * i), 0)
        for _ in range(4):
            table.prune(journal, NOON + table.KEPT[30] + 240.0)
        assert [row.time for row in table.read(journal, POOL, 30, 0.0)] == [36_240, 36_270]


@given(
    st.lists(st.tuples(st.floats(0.0, 30_000.0), st.floats(0.0, 9.0)), min_size=1, max_size=40),
    st.floats(0.0, 40_000.0), st.sampled_from(table.STEPS),
)  # fmt: skip
def test_no_sample_is_lost_or_counted_twice_when_longer_periods_are_made(samples, now, step):
    samples = sorted(samples)
    now = max(now, samples[-1][0])
    gathered = Gathered()
    for time, value in samples:
        for key, sums in one(time, value).items():
            gathered.rows.setdefault(key, Sums()).add(sums)
    with TemporaryDirectory() as folder, closing(InFile(Path(folder)).journal()) as journal:
        store(journal, gathered, now)
        rows = table.read(journal, POOL, step, 0.0)
    whole = total(sums for _, sums in table.buckets(rows, step))
    assert whole.looks == len(samples)
    assert whole.gauges[4] == pytest.approx(sum(value for _, value in samples))
