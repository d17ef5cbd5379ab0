"""Make the picture of the README from `sia demo`: docs/figures/overview.png, with Chromium.

`python docs/overview.py` does nothing while the demo is what it was when the picture was made:
docs/figures/overview.sha256 has the digest of what it shows. `--again` makes the picture in any case.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import json

sys.path.insert(0, str(Path(__file__).parents[1]))

from daemon.process.demo.setting import BEGIN, config_in
from daemon.process.demo.show import LiveDemo, monday_before, prepared
from daemon.process.demo.virtual import VirtualDaemon
from daemon.process.serve import serving
from replay.synthetic.teams import Crowd
from sia.wording import HOUR

PICTURE = Path(__file__).parent / "figures" / "overview.png"

DIGEST = PICTURE.with_suffix(".sha256")

UNTIL = BEGIN + 37 * HOUR
"""Of the demo's time: Thursday at 21:00, when all teams are awake."""

SEED = 1


def digest() -> str:
    """Return the digest of what the demo comes to: pools and accounts at that time."""
    with TemporaryDirectory() as folder, closing(_daemon(Path(folder), Crowd(SEED), 1e9)) as daemon:
        daemon.play(1e9 + UNTIL)
        return digest_of(daemon)


def digest_of(daemon: VirtualDaemon) -> str:
    """Return the digest of the pools and accounts of a daemon that has played to `UNTIL`."""
    pools = daemon.engine.core.state.pools.values()
    accounts = daemon.engine.book.accounts
    rows = [
        (pool.name, pool.quota, pool.dedicated, pool.spare, accounts[pool.name].jobs,
         accounts[pool.name].slowed, round(accounts[pool.name].gained / HOUR, 1))
        for pool in pools
    ]  # fmt: skip
    return hashlib.sha256(json.encode(rows)).hexdigest()


def _daemon(folder: Path, crowd: Crowd, origin: float) -> VirtualDaemon:
    return prepared(config_in(folder), crowd, origin)


async def _live(folder: Path) -> None:
    """Let a daemon live through the day, so that its charts have points."""
    crowd, origin = Crowd(SEED), monday_before(datetime.now(UTC))
    with closing(_daemon(folder, crowd, origin)) as virtual:
        virtual.play(origin + UNTIL - 13 * HOUR)
        seen = virtual.engine.book.notices
    async with serving(config_in(folder)) as (daemon, _):
        users = asyncio.create_task(LiveDemo(daemon, crowd, origin).live(seen))
        while daemon.clock.now() < origin + UNTIL:
            await daemon.clock.sleep_until(origin + UNTIL)
        users.cancel()
        await asyncio.gather(users, return_exceptions=True)


async def _picture(folder: Path) -> None:
    from tests.support.daemons.doors import TOKEN, door  # noqa: PLC0415  the digest needs none
    from tests.support.servers.chromium import (  # noqa: PLC0415  the same
        chromium,
        chromium_server,
    )

    await _live(folder / "state")
    config = config_in(folder / "state")
    settings = {name: getattr(config, name) for name in ("pools", "windows", "forecast")}
    with chromium_server(folder / "profile") as address:
        async with (
            door(folder / "state", speed=1.0, **settings) as client,
            chromium(address) as browser,
        ):
            page = await browser.page(width=1280, zone="UTC")
            await page.goto(client.make_url("/ui/sign-in"))
            await page.type("#token", TOKEN)
            await page.js("document.querySelector('main form').requestSubmit()")
            await page.until("document.querySelector('#totals')")
            await asyncio.sleep(2)  # charts are drawn
            await page.shot(PICTURE, whole=False)


def main() -> None:
    """Run the command."""
    found = digest()
    if DIGEST.exists() and DIGEST.read_text().strip() == found and "--again" not in sys.argv:
        return
    with TemporaryDirectory() as folder:
        for name in ("state", "profile"):
            (Path(folder) / name).mkdir()
        asyncio.run(_picture(Path(folder)))
    DIGEST.write_text(f"{found}\n")


if __name__ == "__main__":
    main()
