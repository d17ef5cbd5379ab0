"""Charts on pages: what a page has without scripts, the range in the address, the kept library."""

from hashlib import sha256

import pytest

from daemon.config.config import PoolConfig
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.paths import ROOT
from tests.support.servers.browsers import browser, parsed, seen

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
async def test_tables_have_what_charts_show_and_links_keep_the_range(folder):
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
