"""Take pictures of all web pages with Chromium, from daemons with no, little, much and hostile data.

`python docs/pictures.py build/pictures` takes pictures of every page, 1440 and 390 pixels wide, light
and dark, and says what is wrong with a page: findings of axe-core, console messages, content that is
wider than the screen. `--docs` writes those of docs/figures/pages/ instead.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[1]))

from yarl import URL

from tests.support.daemons.doors import TOKEN, asked
from tests.support.daemons.worlds import WORLDS, of_phase
from tests.support.servers.chromium import chromium, chromium_server

FIGURES = Path(__file__).parent / "figures" / "pages"

WAYS: dict[str, dict[str, Any]] = {
    "wide": {"width": 1440},
    "wide-dark": {"width": 1440, "dark": True},
    "phone": {"width": 390, "height": 844},
    "phone-dark": {"width": 390, "height": 844, "dark": True},
}

SHOWN = {
    "wide": (
        "overview", "pool", "user", "queue", "jobs", "job", "plan", "nodes", "loans", "ledger",
        "statement", "whatif", "answer", "settings", "policy", "audit", "sign-in", "missing",
    ),
    "phone": ("queue", "plan"),
    "phone-dark": ("overview", "job"),
}  # fmt: skip
"""Pages in the documentation."""

DRAWN = "[...document.querySelectorAll('.canvas')].every((each) => each.firstChild)"
"""Each chart has been drawn, or says why it is empty."""

QUALITY = 25
"""Of WebP: text stays sharp, and a picture of a screen has 15 to 60 kB."""


async def pages(client: Any) -> AsyncIterator[tuple[str, str]]:
    """Yield name and address of each page."""
    pools = (await asked(client, "GET", "/v1/pools"))["pools"]
    pool = quote(max(pools, key=lambda each: each["lent"])["name"], safe="")
    for name in (
        "overview",
        "queue",
        "jobs",
        "plan",
        "nodes",
        "loans",
        "whatif",
        "settings",
        "audit",
    ):
        yield name, "/ui/" + ("" if name == "overview" else name)
    yield "policy", "/ui/policy"
    yield "queue-running", "/ui/queue?what=running"
    yield "pool", f"/ui/pools/{pool}"
    yield "user", "/ui/users/ann"
    yield "ledger", f"/ui/pools/{pool}/ledger"
    yield "statement", f"/ui/pools/{pool}/statement"
    yield "missing", "/ui/pools/none"
    for name, phase in (("job", "pending"), ("job-running", "running"), ("job-ended", "finished")):
        if found := await of_phase(client, phase):
            yield name, f"/ui/jobs/{quote(found, safe='')}"


async def look(browser: Any, client: Any, way: str, out: Path, *, docs: bool) -> list[str]:
    """Take the pictures of all pages one way; return what is wrong."""
    page = await browser.page(**WAYS[way], zone="UTC")
    wrong = []

    async def shot(name: str) -> None:
        if not docs:
            await page.shot(out / f"{name}-{way}.png")
        elif name in SHOWN.get(way, ()):
            await page.shot(out / f"{name}-{way}.webp", whole=False, quality=QUALITY)

    await page.goto(client.make_url("/ui/sign-in"))
    await shot("sign-in")
    await page.type("#token", TOKEN)
    await page.js("document.querySelector('main form').requestSubmit()")
    await page.until("document.querySelector('#totals')")
    async for name, path in pages(client):
        if docs and name not in SHOWN.get(way, ()):
            continue
        await page.goto(client.make_url("/").join(URL(path, encoded=True)))
        await page.until(DRAWN)
        await shot(name)
        if docs:
            continue
        told = [each for each in page.wrong if "status of 404" not in str(each)]  # as it should be
        found = [*await page.faults(), *told]
        if await page.js("document.documentElement.scrollWidth > innerWidth"):
            found.append("wider than the screen")
        page.wrong.clear()
        wrong += [f"{out.name}/{name}-{way}: {each}" for each in found]
    await page.goto(client.make_url("/ui/whatif"))
    await page.js("lending.value = 'off'; true")
    await page.js("document.querySelector('main form').requestSubmit()")
    await page.until("document.querySelector('#answer, main .notice')")
    await shot("answer")
    return wrong


async def take(out: Path, worlds: list[str], ways: list[str], *, docs: bool) -> list[str]:
    """Take the pictures of these worlds; return what is wrong."""
    wrong = []
    for world in worlds:
        with (
            TemporaryDirectory() as state,
            TemporaryDirectory() as profile,
            chromium_server(Path(profile)) as address,
        ):
            async with WORLDS[world](Path(state)) as client, chromium(address) as browser:
                for way in ways:
                    wrong += await look(
                        browser, client, way, out if docs else out / world, docs=docs
                    )
    return wrong


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "out", type=Path, nargs="?", default=FIGURES, help="folder for the pictures"
    )
    parser.add_argument("--world", action="append", choices=WORLDS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--docs", action="store_true", help="those of the documentation")
    given = parser.parse_args()
    worlds = given.world or (["little"] if given.docs else list(WORLDS))
    wrong = asyncio.run(take(given.out, worlds, given.way or list(WAYS), docs=given.docs))
    sys.stdout.write("\n".join([*wrong, f"{len(wrong)} findings"]) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
