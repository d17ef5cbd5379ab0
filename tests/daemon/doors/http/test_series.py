"""Time series: known jobs give known points, in the journal, for everybody who may see them."""

import asyncio
from math import ceil
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from daemon.config.config import PoolConfig
from daemon.doors.views.series import table
from daemon.doors.views.series.charts import charts_of
from daemon.doors.views.series.sampler import Gathered
from daemon.doors.views.series.sums import NAMES, OTHERS, Gain, Key, Sums, largest, total
from daemon.doors.views.series.table import Judged
from daemon.forecasts.load_errors import EndedWindow
from daemon.model.account import Verdict
from daemon.model.errors import JournalError
from sia.limits import MAX_GROUP, SLOWED
from tests.support.daemons.doors import asked, door, job_in, story

ALL = ["gpus", "pending", "wait", "saved", "jobs", "forecast", "lenders", "borrowers"]


def lines(series, metric):
    """The lines of a chart, by name."""
    chart = next(chart for chart in series["charts"] if chart["metric"] == metric)
    return {line["name"]: line["values"] for line in chart["lines"]}


class SetClock:
    """The time of a daemon, which the test sets."""

    def __init__(self, clock, time):
        self.clock, self.time = clock, time

    def __getattr__(self, name):
        return getattr(self.clock, name)

    def now(self):
        return self.time


@story
async def test_samples_are_the_means_of_a_period(folder):
    async with door(folder, speed=1.0) as client:
        client.service.clock = clock = SetClock(client.service.clock, 9_000_000_000.0)
        assert (await asked(client, "GET", "/v1/series"))["times"] == []
        await client.usage.look()
        job = {"id": "a", "pool": "speech", "gpus": 3, "duration": 1e6, "user": "ann"}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "a", "running")
        clock.time += 10.0
        await client.usage.look()
        clock.time += 30.0
        await client.usage.look()
        hour = await asked(client, "GET", "/v1/series?range=1h")
        assert [chart["metric"] for chart in hour["charts"]] == ALL
        assert hour["step"] == 30
        assert hour["times"] == [9_000_000_000, 9_000_000_030]
        assert lines(hour, "gpus")["dedicated"] == [1.5, 3.0]
        assert lines(hour, "gpus")["idle"] == [10.5, 9.0]
        one = await asked(client, "GET", "/v1/series?range=1h&pool=vision&metric=gpus")
        assert [chart["metric"] for chart in one["charts"]] == ["gpus"]
        assert lines(one, "gpus")["idle"] == [8.0, 8.0]
        user = await asked(client, "GET", "/v1/series?user=ann")
        assert user["step"] == 300
        assert lines(user, "gpus")["of the own pool"] == [2.0]


@story
async def test_longer_periods_are_made_of_shorter_ones_and_old_ones_are_deleted(folder):
    begin = 9_000_000_000.0
    async with door(folder, speed=1.0) as client:
        client.service.clock = clock = SetClock(client.service.clock, begin)
        job = {"id": "a", "pool": "speech", "gpus": 4, "duration": 1e8, "user": "ann"}
        for i in range(50):
            clock.time = begin + 600.0 * i
            if i == 25:
                await asked(client, "POST", "/v1/jobs", job, status=201)
                await job_in(client, "a", "running")
            await client.usage.look()
        held = await client.service.journal(
            lambda journal: journal.store.all(
                "SELECT step, MIN(time), COUNT(*) FROM series WHERE pool = 'vision' GROUP BY step"
            )
        )
        first = clock.time - table.KEPT[30] - 600
        assert [row[0] for row in held] == [30, 300, 3600]
        assert first <= held[0][1] <= first + 1200
        assert held[1][2] == 49, "the newest period has not passed"
        for span, points in (("1d", 500), ("1w", 500), ("30d", 500), ("1d", 4)):
            query = f"/v1/series?range={span}&points={points}"
            found = await asked(client, "GET", query)
            assert sum(lines(found, "gpus")["dedicated"]) > 0
            await one_count(found, begin, 600.0, [0.0] * 25 + [4.0] * 25)
            user = await asked(client, "GET", f"{query}&user=ann")
            assert user["times"] == found["times"] or span == "1h"
            assert lines(user, "gpus")["of the own pool"] == lines(found, "gpus")["dedicated"]


@story
async def test_a_range_covers_the_whole_periods_that_contain_its_ends(folder):
    begin = 9_000_000_000.0
    async with door(folder, speed=1.0) as client:
        client.service.clock = clock = SetClock(client.service.clock, begin)
        for i in range(40):
            clock.time = begin + 30.0 * i
            await client.usage.look()
        query = f"/v1/series?from={begin + 95}&to=2255-03-14T16:05:10Z"  # 310 s after the begin
        found = await asked(client, "GET", query)
        assert found["range"] is None
        assert (found["since"], found["until"]) == (begin + 90, begin + 330)
        assert found["times"] == [int(begin) + 30 * i for i in range(3, 11)]
        few = await asked(client, "GET", f"{query}&points=3")
        assert len(few["times"]) <= 3
        assert few["since"] <= begin + 95
        assert few["until"] >= begin + 310
        back = await asked(client, "GET", f"/v1/series?range=1h&to={begin + 600}")
        assert back["range"] == "1h"
        assert max(back["times"]) == begin + 570
        later = await asked(client, "GET", f"/v1/series?from={begin + 600}")
        assert min(later["times"]) == begin + 630
        assert later["until"] > clock.time
        assert (await asked(client, "GET", "/v1/series?from=0&to=9"))["times"] == []
        for wrong in ("from=2&to=1", "from=nan", "to=1e300", "from=2026-13-01T00:00Z"):
            said = await asked(client, "GET", f"/v1/series?{wrong}", status=422)
            assert "\n" not in said["detail"]


async def one_count(found, begin, every, values):
    """The points are the means of these values, `every` seconds apart."""
    for at, value in zip(found["times"], lines(found, "gpus")["dedicated"], strict=True):
        within = [
            each for i, each in enumerate(values) if at <= begin + every * i < at + found["step"]
        ]
        assert value == pytest.approx(sum(within) / len(within), rel=1e-3), at


@story
async def test_waits_and_gains_equal_those_of_the_accounts(folder):
    pools = (PoolConfig("vision", 8), PoolConfig("speech", 4))
    async with door(folder, pools=pools, speed=2000.0) as client:
        await client.usage.look()
        for i in range(6):
            job = {"pool": "speech", "gpus": 4, "duration": 300.0, "run_time": 300.0}
            job |= {"id": f"j{i}", "user": "ann" if i % 2 else "bob"}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        for i in range(6):
            await job_in(client, f"j{i}", "finished")
        for _ in range(1000):
            await client.usage.look()
            found = await asked(client, "GET", "/v1/series?range=6h")
            if found["gained"]["jobs"] == 6:
                break
            await asyncio.sleep(0.01)
        account = await asked(client, "GET", "/v1/pools/speech/account")
        assert found["gained"]["sooner_hours"] == pytest.approx(account["sooner_hours"])
        assert found["gained"]["slowed"] == account["slowed"]
        assert [row["pool"] for row in found["gains"]] == ["speech"]
        assert sum(lines(found, "jobs")["compared"]) == 6
        own = await asked(client, "GET", "/v1/series?range=6h&pool=speech")
        compared = [i for i, jobs in enumerate(lines(found, "jobs")["compared"]) if jobs]
        for name, values in lines(own, "wait").items():
            seen = [value for value in values if value is not None]
            assert seen == [lines(found, "wait")[name][i] for i in compared]
        users = [await asked(client, "GET", f"/v1/series?user={u}") for u in ("ann", "bob")]
        assert [user["gained"]["jobs"] for user in users] == [3, 3]
        hours = sum(user["gained"]["sooner_hours"] for user in users)
        assert hours == pytest.approx(account["sooner_hours"])


@story
async def test_a_range_that_does_not_exist_is_refused_in_one_line(folder):
    async with door(folder, speed=1.0) as client:
        for query in (
            "range=2y",
            "metric=luck",
            "points=1",
            "points=501",
            "points=x",
            "since=1",
            "to=x",
        ):
            said = await asked(client, "GET", f"/v1/series?{query}", status=422)
            assert query.partition("=")[0] in said["detail"]
            assert "\n" not in said["detail"]
        said = await asked(client, "GET", "/v1/series?pool=visio", status=404)
        assert "vision" in said["mend"]
        assert (await asked(client, "GET", "/v1/series?user=nobody"))["times"] == []


@story
async def test_only_those_who_see_the_jobs_of_a_pool_see_its_waits_and_loans(folder):
    async with door(folder, speed=1.0) as client:
        body = {"name": "t", "role": "viewer", "pools": ["vision"]}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        for pool in ("vision", "speech"):
            job = {"id": pool, "pool": pool, "gpus": 2, "duration": 1e6, "user": "ann"}
            await asked(client, "POST", "/v1/jobs", job, status=201)
            await job_in(client, pool, "running")
        await client.usage.look()
        as_viewer = {"Authorization": f"Bearer {token}"}

        async def seen(query, status=200):
            path = f"/v1/series?{query}"
            return await asked(client, "GET", path, status=status, headers=as_viewer)

        assert [chart["metric"] for chart in (await seen("pool=vision"))["charts"]] == ALL
        others = await seen("pool=speech")
        assert [chart["metric"] for chart in others["charts"]] == ["gpus", "pending", "forecast"]
        assert others["gains"] == []
        await seen("pool=speech&metric=wait", 403)
        await seen("pool=speech&user=ann", 403)
        assert lines(await seen("user=ann"), "gpus")["of the own pool"] == [2.0]
        everywhere = await asked(client, "GET", "/v1/series?user=ann")
        assert lines(everywhere, "gpus")["of the own pool"] == [4.0]


@story
async def test_series_continue_after_a_restart_and_after_failed_writes(folder):
    async with door(folder, speed=1.0) as client:
        await client.usage.look()
        with patch.object(client.service, "journal", side_effect=JournalError("no room")):
            await client.usage.look()
            running = asyncio.create_task(client.usage.run())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not running.done()
            running.cancel()
        before = await asked(client, "GET", "/v1/series?range=1h")
        assert len(before["times"]) == 1
    async with door(folder, speed=1.0) as client:
        after = await asked(client, "GET", "/v1/series?range=1h")
        assert (after["times"], after["charts"]) == (before["times"], before["charts"])


def test_forecasts_are_compared_with_actual_arrivals():
    gathered = Gathered()
    gathered.compare(EndedWindow(3600.0, 7230.0, ["a", "b"], [4, 6], [8, 0]))
    gathered.compare(EndedWindow(3600.0, 7230.0, ["a", "b"], [2, 6], [0, 1]))
    gathered.compare(EndedWindow(3600.0, 7230.0, ["a", "b"], [MAX_GROUP, 6], [0, 1]))
    parts = {key.pool: sums for (_, _, key), sums in gathered.rows.items()}
    for pool, forecast, came in (("a", 3.0, 4.0), ("b", 6.0, 0.5), ("", 9.0, 4.5)):
        charts = charts_of(Key(pool), [parts[pool]], 3600.0, whole=True)
        [chart] = [chart for chart in charts if chart.metric == "forecast"]
        assert [line.values for line in chart.lines] == [[forecast], [came]]


waits = st.floats(0.0, 1e6)
judged = st.builds(
    lambda pool, wait, alone, ran, never: Verdict(
        "j", pool, 1, 100.0, 100.0 + wait, 100.0 + wait + ran, None if never else 100.0 + alone
    ),
    st.sampled_from("abc"), waits, waits, waits, st.integers(0, 9).map(lambda i: i == 0),
)  # fmt: skip


@given(st.lists(st.tuples(st.floats(0.0, 4e4), judged), max_size=60))
def test_sums_are_those_of_a_naive_count(history):
    gathered = Gathered()
    gathered.judge(
        Judged(i, time, verdict, "ann" if i % 2 else "")
        for i, (time, verdict) in enumerate(history)
    )
    whole = total(sums for (_, _, key), sums in gathered.rows.items() if key == Key())
    compared = [v for _, v in history if v.alone is not None]
    later = [v.started - v.alone for v in compared]
    assert whole.gain.jobs == len(history)
    assert whole.gain.slowed == sum(each > SLOWED for each in later)
    assert whole.gain.gained == pytest.approx(sum(-each for each in later if each < 0))
    assert whole.waited.count == len(compared)
    own = sorted(v.started - v.submitted for v in compared)
    if own:
        assert whole.waited.mean == pytest.approx(sum(own) / len(own))
        exact = own[ceil(0.9 * len(own)) - 1]
        assert whole.waited.quantile(0.9) == pytest.approx(exact, rel=0.05, abs=1.0)
    for pool in "abc":
        of_pool = total(s for (_, _, key), s in gathered.rows.items() if key == Key(pool))
        assert of_pool.gain.jobs == sum(v.pool == pool for _, v in history)
        if of_pool.gain.jobs:
            assert whole.gains[pool].gained == pytest.approx(of_pool.gain.gained)
    for (step, begin, _), sums in gathered.rows.items():
        assert begin % step == 0
        assert sums == json.decode(json.encode(sums), type=Sums)


@given(st.dictionaries(st.text("abcdef", max_size=3), st.floats(0.1, 9.0)), st.integers(1, 5))
def test_the_largest_pools_are_named_and_the_others_are_summed(values, count):
    found = largest(values, count)
    assert sum(found.values()) == pytest.approx(sum(values.values()))
    named = {name: value for name, value in found.items() if name}
    assert len(named) == min(count, len(values.keys() - {OTHERS}))
    assert all(values[name] == value for name, value in named.items())


def test_a_row_names_a_bounded_number_of_pools():
    sums = Sums()
    for i in range(2 * NAMES):
        sums.gains[f"p{i:03}"] = Gain(1, 0, float(i))
        sums.lenders[f"p{i:03}"] = 1.0
    sums.cut()
    assert len(sums.gains) == len(sums.lenders) == NAMES + 1
    assert sums.gains[OTHERS].jobs == NAMES
    assert sums.lenders[OTHERS] == NAMES
