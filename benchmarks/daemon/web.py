"""Web pages of a loaded daemon: time until a browser paints them, and the daemon's CPU time.

The daemon is a process of its own (`sia serve`, simulated backend): 1,000 pools of 10 GPUs in
groups of ten, 10,000 jobs that run and 40,000 that wait. Each page is opened in a headless Chromium
with an empty cache; the time is that of its first contentful paint, from when it was asked for.

    python -m benchmarks.daemon.web [--times 10]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from benchmarks.answers.whatif import POOLS, RUNNING, configuration, fill, jobs, served, worked
from benchmarks.common import keep, spread
from daemon.doors.web.pages.table import PAGES
from tests.support.servers.chromium import Page, chromium, chromium_server

GROUP, PENDING = 10, 40_000

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


async def settled(session: aiohttp.ClientSession) -> None:
    """Wait until as many run as can."""
    while True:
        async with session.get("/v1/status") as response:
            before = (await response.json())["last_commit"]
        await asyncio.sleep(2.0)
        async with session.get("/v1/status") as response:
            if (await response.json())["last_commit"] == before:
                return


async def page_of(devtools: Any, address: str, token: str) -> Page:
    """A page that is signed in, and keeps nothing."""
    page: Page = await devtools.page()
    await page.goto(f"{address}/ui/sign-in")
    await page.type("#token", token)
    await page.js("document.querySelector('main form').requestSubmit()")
    await page.until("document.querySelector('#totals')")
    await page.do("Network.setCacheDisabled", cacheDisabled=True)
    return page


async def measured(
    page: Page, session: aiohttp.ClientSession, url: str, times: int, pid: int
) -> dict[str, Any]:
    """Of one page: milliseconds to its paint, to its answer, and of a core."""
    paints, answers, size = [], [], 0
    for _ in range(times):
        await page.goto(url)
        await page.until(PAINTED.removesuffix(".startTime"))
        paints.append(await page.js(PAINTED))
        await page.goto("about:blank")
    before = worked(pid)[0]
    for _ in range(times):
        began = time.perf_counter()
        async with session.get(url, headers={"Accept": "text/html"}) as response:
            assert response.status == 200, url
            size = len(await response.read())
        answers.append((time.perf_counter() - began) * 1000)
    return {
        "milliseconds_to_first_paint": spread(paints),
        "milliseconds_to_the_answer": spread(answers),
        "core_milliseconds_of_the_daemon": round((worked(pid)[0] - before) / times, 1),
        "kilobytes": round(size / 1000, 1),
    }


async def run(folder: Path, address: str, token: str, times: int, pid: int) -> dict[str, Any]:
    """All pages of the menu, a pool's and a job's."""
    headers = {"Authorization": f"Bearer {token}"}
    with chromium_server(folder) as browser:
        async with (
            aiohttp.ClientSession(address, headers=headers) as session,
            chromium(browser) as devtools,
        ):
            await fill(session, jobs(PENDING))
            await settled(session)
            page = await page_of(devtools, address, token)
            found = {}
            for path in (*(path for each in PAGES for path, _ in each.menu), "/ui/pools/p0007"):
                found[path] = await measured(page, session, address + path, times, pid)
                print(path, found[path])
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    times = parser.parse_args().times
    with TemporaryDirectory() as name, TemporaryDirectory() as profile:
        config = configuration(GROUP)
        with served(Path(name), config) as (address, token, pid):
            found = asyncio.run(run(Path(profile), address, token, times, pid))
    keep("daemon/web", {"pools": POOLS, "jobs": RUNNING + PENDING, "times": times, "pages": found})


if __name__ == "__main__":
    main()
