"""What became of GPUs over the last hour: looked at, noted, drawn, and there after a restart."""

import asyncio
import json
import re
from contextlib import suppress
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.config.config import PoolConfig
from daemon.doors.web.chart import chart_of
from daemon.model.errors import JournalError
from daemon.wire.plan import UsageSample
from tests.support.daemons.doors import asked, door, story
from tests.support.servers.browsers import browser, seen


@story
async def test_the_last_hour_is_kept_sample_by_sample(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        assert (await asked(client, "GET", "/v1/usage"))["samples"] == []
        assert "The chart of GPU use appears" in await seen(visitor, "/ui/")
        await client.usage.look()
        job = {"id": "a", "pool": "speech", "gpus": 3, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await client.usage.look()
        both = (await asked(client, "GET", "/v1/usage"))["samples"]
        assert [sample["quota"] for sample in both] == [12, 12]
        assert [sample["dedicated"] for sample in both] == [0, 3]
        one = await asked(client, "GET", "/v1/usage?pool=vision")
        assert [sample["idle"] for sample in one["samples"]] == [8, 8]
        await asked(client, "GET", "/v1/usage?pool=none", status=404)
        assert "GPUs: dedicated 0 to 3, lent 0 to 0" in await seen(visitor, "/ui/")
    pools = (PoolConfig("vision", 8), PoolConfig("more", 4), PoolConfig("speech", 4))
    async with door(folder, pools=pools, speed=1.0) as client:  # started again, with one pool more
        await client.usage.recall()
        assert (await asked(client, "GET", "/v1/usage"))["samples"] == both
        assert await asked(client, "GET", "/v1/usage?pool=vision") == one
        assert (await asked(client, "GET", "/v1/usage?pool=more"))["samples"] == []
        await client.usage.look()
        assert len((await asked(client, "GET", "/v1/usage?pool=vision"))["samples"]) == 3
    with patch("daemon.doors.views.usage.machine.time", lambda: 1e12):
        async with door(folder, pools=pools, speed=1.0) as client:  # so much later
            await client.usage.recall()
            assert (await asked(client, "GET", "/v1/usage"))["samples"] == []


@story
async def test_the_record_of_the_last_hour_is_bounded(folder):
    with patch("daemon.doors.views.usage.KEPT", 3):
        async with door(folder) as client:
            for _ in range(7):
                await client.usage.look()
            times = [look["time"] for look in (await asked(client, "GET", "/v1/usage"))["samples"]]
            assert len(await client.service.notes.read("usage:")) == 3
        async with door(folder) as client:
            await client.usage.recall()
            await client.usage.look()
            noted = [look["time"] for look in (await asked(client, "GET", "/v1/usage"))["samples"]]
            assert noted[:2] == times[-2:]
            assert len(await client.service.notes.read("usage:")) == 3


@story
async def test_notes_that_cannot_be_read_are_left_out_and_written_over(folder):
    odd = {"number": 7, "at": 1e12, "time": 5.0, "pools": ["vision"], "values": [1, 2, 3]}
    async with door(folder) as client:
        await client.usage.look()
        kept = (await asked(client, "GET", "/v1/usage"))["samples"]
        notes = {"usage:000": "{", "usage:002": '{"number": "two"}', "usage:003": json.dumps(odd)}
        await client.service.notes.write(notes)
    async with door(folder) as client:
        await client.usage.recall()
        assert (await asked(client, "GET", "/v1/usage"))["samples"] == kept
        await client.usage.look()
        assert "two" not in (await client.service.notes.read("usage:002"))["usage:002"]


@story
async def test_the_curve_runs_forward_after_a_start_that_could_not_read_it(folder):
    times = []
    for lost in (False, True, False):
        async with door(folder, speed=1.0) as client:
            read = client.service.notes.read
            gone = JournalError("gone") if lost else None
            with patch.object(client.service.notes, "read", side_effect=gone, wraps=read):
                with suppress(JournalError):
                    await client.usage.recall()
                for _ in range(2 if lost else 5):
                    await client.usage.look()
            times.append((await asked(client, "GET", "/v1/usage"))["samples"])
    assert len(times[-1]) == 5 - 2 + 2 + 5  # two were written over
    assert [look["time"] for look in times[-1]] == sorted(look["time"] for look in times[-1])


@story
async def test_a_journal_that_cannot_be_written_ends_no_look(folder):
    async with door(folder) as client:
        with patch.object(client.service.notes, "write", side_effect=JournalError("no room")):
            await client.usage.look()
        with patch.object(client.service.notes, "read", side_effect=JournalError("gone")):
            running = asyncio.create_task(client.usage.run())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not running.done()
            running.cancel()
        assert (await asked(client, "GET", "/v1/usage"))["samples"]


@given(
    st.lists(
        st.tuples(*[st.integers(0, 9)] * 5).map(
            lambda v: UsageSample(0.0, sum(v[:3]), v[0], v[1], v[4], v[2], v[3])
        ),
        min_size=2, max_size=6,
    )
)  # fmt: skip
def test_a_chart_s_areas_fill_what_is_owned(samples):
    samples = [replace(sample, time=10.0 * i) for i, sample in enumerate(samples)]
    chart = chart_of(samples)
    assert chart.top >= max(sample.quota for sample in samples)
    edges = [re.findall(r"([\d.]+),([\d.-]+)", area.path) for area in chart.areas]
    count = len(samples)
    for below, above in pairwise(edges):
        assert above[count:] == below[:count][::-1], "each begins where the one below it ends"
    for (x, y), sample in zip(edges[-1], samples, strict=False):
        assert float(y) == pytest.approx(100 * (1 - sample.quota / chart.top), abs=0.06)
        assert 0 <= float(x) <= 600
