"""Time series: known jobs give known points, in the journal, for everybody who may see them."""

import asyncio

import pytest

from daemon.config.config import PoolConfig
from daemon.doors.views.series import table
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
async def test_longer_periods_are_made_of_shorter_ones_and_old_ones_go(folder):
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


async def one_count(found, begin, every, values):
    """The points are the means of these values, `every` seconds apart."""
    for at, value in zip(found["times"], lines(found, "gpus")["dedicated"], strict=True):
        within = [
            each for i, each in enumerate(values) if at <= begin + every * i < at + found["step"]
        ]
        assert value == pytest.approx(sum(within) / len(within), rel=1e-3), at


@story
async def test_what_jobs_waited_and_gained_is_what_their_accounts_say(folder):
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
