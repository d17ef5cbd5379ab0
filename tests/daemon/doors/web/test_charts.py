"""Charts on pages: what a page has without scripts, the range in the address, the kept library."""

import re
from functools import partial
from hashlib import sha256
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from yarl import URL

from daemon.config.config import PoolConfig
from daemon.model.account import Booked, Verdict
from sia.wording import DAY, HOUR
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.paths import ROOT
from tests.support.servers.browsers import browser, parsed, rows_of, seen

UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Files of uPlot 1.6.32 and their SHA-256."""


@pytest.mark.parametrize("name", UPLOT)
def test_the_library_of_charts_is_the_published_one(name):
    body = (ROOT / "daemon/doors/web/assets/uplot" / name).read_bytes()
    assert sha256(body).hexdigest() == UPLOT[name]


@story
async def test_tables_contain_what_charts_show_and_links_keep_the_range(folder):
    pools = (PoolConfig("vision", 8), PoolConfig("speech", 4))
    async with door(folder, pools=pools, speed=1.0) as client, browser(client) as visitor:
        assert "The charts begin with the first sample" in await seen(visitor, "/ui/")
        job = {"id": "a", "pool": "speech", "gpus": 3, "duration": 1e6, "user": "a/b <i>"}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "a", "running")
        await client.usage.look()
        for path in (
            "/ui/?range=1w",
            "/ui/pools/speech?range=1w",
            "/ui/users/a%2Fb%20%3Ci%3E?range=1w",
        ):
            page = await seen(visitor, path)
            tags, text = parsed(page)
            assert "GPUs" in text
            assert "3" in text
            links = {has.get("href", "") for tag, has in tags if tag == "a"}
            assert any(link.endswith("range=30d") for link in links), path
            [current] = [has for tag, has in tags if has.get("aria-current") == "true"]
            assert current["href"].endswith("range=1w")
            [charts] = [has["data-from"] for _, has in tags if "data-from" in has]
            async with visitor.get(charts) as answer:
                series = await answer.json()
            assert series["range"] == "1w"
            assert len(series["times"]) == 1
        assert "/ui/pools/speech?range=1w" in await seen(visitor, "/ui/?range=1w")
        assert 'href="/ui/?range=1w"' in await seen(visitor, "/ui/pools/speech?range=1w")
        await seen(visitor, "/ui/?range=2y", status=422)
        await seen(visitor, "/ui/queue?from=luck", status=422)


@story
async def test_one_steps_through_time_by_as_much_as_is_shown(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:

        async def steps(path):
            tags, _ = parsed(await seen(visitor, path))
            return {
                title.split(", ")[1]: has["href"]
                for tag, has in tags
                if tag == "a" and (title := has.get("title", "")).startswith("As long a range")
            }

        day = "/ui/?from=2025-11-02T00:00Z&to=2025-11-03T00:00Z"
        there = await steps(day)
        assert parse_qs(urlsplit(there["just before this one"]).query) == {
            "from": ["2025-11-01T00:00:00.000Z"], "to": ["2025-11-02T00:00:00.000Z"],
        }  # fmt: skip
        assert parse_qs(urlsplit(there["just after this one"]).query) == {
            "from": ["2025-11-03T00:00:00.000Z"], "to": ["2025-11-04T00:00:00.000Z"],
        }  # fmt: skip
        back = await steps(there["just before this one"])
        assert (await steps(back["just after this one"])) == there
        assert [*await steps("/ui/?range=1d")] == ["just before this one"], "nothing is later yet"
        assert [*await steps("/ui/users/ann?range=1w")] == ["just before this one"]
        assert [*await steps("/ui/?from=1&to=2")] == ["just after this one"], "time begins at 0"


@story
async def test_every_chart_says_why_it_is_empty(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        for path, words in (
            ("/ui/", "No GPU was lent in this range."),
            ("/ui/pools/speech", "The pool borrowed no GPU in this range."),
            ("/ui/users/ann", "No job was pending in this range."),
        ):
            tags, text = parsed(await seen(visitor, path))
            reasons = [has.get("data-nothing") for _, has in tags if "data-metric" in has]
            assert len(reasons) >= 5
            assert all(reasons), path
            assert words in reasons
            assert words in text, "the table says so, too"


PAGES = (
    "/ui/", "/ui/queue", "/ui/jobs", "/ui/plan", "/ui/nodes", "/ui/loans", "/ui/whatif",
    "/ui/settings", "/ui/audit", "/ui/jobs/a", "/ui/users/ann", "/ui/pools/speech",
    "/ui/pools/speech/ledger", "/ui/pools/speech/statement",
)  # fmt: skip


@story
async def test_every_link_and_every_filter_keeps_the_range(folder):
    pools = (PoolConfig("vision", 8), PoolConfig("speech", 4))
    async with door(folder, pools=pools, speed=1.0) as client, browser(client) as visitor:
        job = {"id": "a", "pool": "speech", "gpus": 3, "duration": 1e6, "user": "ann"}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "a", "running")
        await client.usage.look()
        for times in ({"range": "1w"}, {"from": "2026-11-01T00:00Z", "to": "2026-11-02T00:00Z"}):
            for path in PAGES:
                tags, _ = parsed(await seen(visitor, f"{path}?{urlencode(times)}"))
                links = [has["href"] for tag, has in tags if tag == "a" and "href" in has]
                others = [
                    URL(link) for link in links
                    if link.startswith("/ui/") and URL(link).path != path and "month" not in link
                ]  # fmt: skip
                assert len(others) > 5
                assert all(times.items() <= link.query.items() for link in others), path
                forms = sum(has.get("method") == "get" for _, has in tags)
                forms -= path.endswith("/statement")  # a month is a range of its own
                for name in times:
                    assert sum(has.get("name") == name for _, has in tags) >= forms, path


@story
async def test_the_number_of_slowed_jobs_leads_to_exactly_these(folder):
    pools = (PoolConfig("vision", 4), PoolConfig("speech", 4))
    async with door(folder, pools=pools, speed=1.0) as client, browser(client) as visitor:
        verdicts = [
            Verdict(f"j{i}", "speech", 1, 0.0, ended=300.0, started=20.0 * i, alone=alone)
            for i, alone in enumerate((0.0, 5.0, 100.0, 10.0, None))
        ]
        job = {"id": "opens-the-account", "pool": "speech", "gpus": 1, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        now = client.service.clock.now()
        for booked, some in ((now - 8 * DAY, verdicts), (now - HOUR, verdicts[1:])):
            await client.service.journal(partial(book, verdicts=some, time=booked))
        await client.usage.look()
        for asked_range, slowed in (("range=1d", 2), ("range=30d", 4)):
            page = await seen(visitor, f"/ui/?{asked_range}")
            [row] = rows_of(page, "gains")
            assert row["Jobs slowed"] == str(slowed)
            link = re.search(r'href="([^"]*jobs=slowed[^"]*)"', page)[1].replace("&amp;", "&")
            there = await seen(visitor, link)
            listed = [row["Job"] for row in rows_of(there, "verdict-table")]
            assert sorted(listed) == sorted(["j1", "j3"] * (slowed // 2))
            assert "Slowed jobs" in there


def book(journal, verdicts, time):
    """Write verdicts as a step does."""
    with journal.store.transaction():
        journal._book(Booked(verdicts, []), time)
