"""The plan: bars where the times are, and the facts of the API beside them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.doors.web.gantt import PAST, WIDE, TimeAxis, of_job, reserved
from daemon.model.job import JobPhase
from daemon.wire.estimates import EstimateView, Moment
from daemon.wire.jobs import JobView
from daemon.wire.queue import Queued
from sia.model import Stream
from tests.daemon.answers.test_eta import taught
from tests.daemon.doors.web.test_jobs import rows_in, send, token_of
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.servers.browsers import browser, parsed, seen, when

times = st.none() | st.floats(0, 2e9)


@given(times, times, times, times, st.sampled_from([None, *Stream]))
def test_bars_stay_within_their_line_and_do_not_overlap(start, late, p50, p90, stream):
    scale = TimeAxis(1e9, 3600.0)
    view = JobView("j", "a", 1, JobPhase.PENDING, 0.0, stream=stream, started=start)
    estimate = EstimateView(1e9, "queue", Moment(p50, p90), 0, 0, "", Moment(start, late))
    for said in (estimate, None):
        bars = of_job(scale, Queued(view, estimate=said))
        end = 0.0
        for bar in sorted(bars):
            assert 0 <= bar.x <= WIDE
            assert bar.width > 0
            assert bar.x + bar.width <= WIDE + 0.1
            assert 0 <= bar.y < bar.y + bar.height <= 1.001
            if p50 is not None and (p90 is None or p50 <= p90):
                assert bar.x >= end - 0.1
            end = bar.x + bar.width


@pytest.mark.parametrize(
    ("time", "x"), [(1000.0, PAST), (900.0, 0.0), (0.0, 0.0), (1400.0, WIDE), (1200.0, 600.0)]
)
def test_a_fifth_of_the_line_is_past(time, x):
    assert TimeAxis(1000.0, 400.0).x(time) == x


def test_the_reservation_is_drawn_as_one_step_per_window():
    bars = reserved(TimeAxis(0.0, 100.0), (10.0, 50.0, 400.0), (1, 2, 4), 4)
    assert [(bar.x, bar.width, bar.height, bar.y) for bar in bars] == [
        (200.0, 80.0, 0.25, 0.75), (280.0, 320.0, 0.5, 0.5), (600.0, 400.0, 1.0, 0.0),
    ]  # fmt: skip


def end_of(job):
    return when(job["estimate"]["end"]["p90"])


async def queue_of(client):
    running = (await asked(client, "GET", "/v1/queue?what=running"))["jobs"]
    return [*running, *(await asked(client, "GET", "/v1/queue"))["jobs"]]


async def page_and_queue(client, visitor):
    """Return the page and the queue at one moment: estimates move on with the clock."""
    while True:
        before = await queue_of(client)
        html = await seen(visitor, "/ui/plan?span=hour")
        after = await queue_of(client)
        if [end_of(each) for each in before] == [end_of(each) for each in after]:
            return html, after


@story
async def test_the_plan_shows_what_the_api_says(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        taught(client)
        client.eta.ready = True
        await send(client, "runs", gpus=4, time_limit=3600)
        await job_in(client, "runs", "running")
        for i in range(3):
            await send(client, f"w{i}", gpus=8, time_limit=3600)
        await send(client, "s", pool="speech", gpus=1, time_limit=600)
        await job_in(client, "s", "running")
        await client.eta.look()
        html, jobs = await page_and_queue(client, visitor)
        rows = rows_in(html)
        for each in jobs:
            assert end_of(each) in html
        shown = [row.split()[0] for row in rows if re.match(r"(runs|w\d|s) ", row)]
        assert shown == [each["job"]["id"] for each in jobs]
        assert html.count('class="waiting" x=') >= 1
        forecasts = await asked(client, "GET", "/v1/forecasts")
        for pool in forecasts["pools"]:
            numbers = " ".join(map(str, pool["held_back"]))
            assert (f"{pool['pool']} {numbers}" in rows) is any(pool["held_back"])
        plan = await asked(client, "GET", "/v1/plan")
        for group in plan["groups"]:
            usable = " ".join(str(window["usable"]) for window in group["windows"])
            assert f"{group['group'] or 'all pools'} {group['idle']} {usable}" in rows
        (ahead,) = [group["ahead"] for group in plan["groups"]]
        assert ahead[0] == {"time": ahead[0]["time"], "idle": plan["groups"][0]["idle"]}
        assert [step["time"] for step in ahead] == sorted(step["time"] for step in ahead)
        assert ahead[-1]["idle"] == 12  # once all jobs have ended, all GPUs are idle
        alone = rows_in(await seen(visitor, "/ui/plan?pool=speech"))
        assert any(row.startswith("s speech") for row in alone)
        assert not any("runs" in row for row in alone)
        await seen(visitor, "/ui/plan?span=year", 422)


@story
async def test_jobs_of_invisible_pools_are_not_in_the_plan(folder):
    async with door(folder, speed=1.0) as client:
        for i in range(2):
            await send(client, f"hidden{i}")
            await send(client, f"own{i}", pool="speech", gpus=4)
        token = await token_of(client, role="viewer", pools=["speech"])
        async with browser(client, token) as visitor:
            for path in ("/ui/plan", "/ui/plan?pool=vision"):
                assert not re.search("hidden[01]", await seen(visitor, path))
            text = parsed(await seen(visitor, "/ui/plan"))[1]
            assert "own0" in text
            assert "own1" in text
