"""Pages in a real browser, of a daemon whose six pools have lived through some days."""

import asyncio
import os
import random
import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest
from yarl import URL

from daemon.config.config import NodeConfig, PoolConfig
from daemon.process.demo.setting import BEGIN, config_in
from daemon.process.demo.show import LiveDemo, monday_before, prepared
from daemon.process.serve import serving
from replay.synthetic.teams import Crowd
from sia.wording import HOUR
from tests.daemon.doors.web.test_times import AWAY
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import TOKEN, asked, door, story
from tests.support.servers.browsers import browser as visiting
from tests.support.servers.browsers import seen
from tests.support.servers.chromium import chromium, chromium_server

UNTIL = BEGIN + 39 * HOUR
"""Of the demo's time, late on Thursday: its pools are busy, and lend to each other."""

SHOTS = os.environ.get("SIA_SHOTS")
"""A folder for pictures of all pages; without it they are beside the test's own files."""


@pytest.fixture(scope="module")
def devtools():
    with (
        TemporaryDirectory(prefix="sia-chromium-") as folder,
        chromium_server(Path(folder)) as address,
    ):
        yield address


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A daemon that has lived through a working day: its folder and settings."""
    folder = tmp_path_factory.mktemp("lived")
    config, crowd = config_in(folder), Crowd(1)
    origin = monday_before(datetime.now(UTC))
    with closing(prepared(config, crowd, origin)) as virtual:
        virtual.play(origin + UNTIL - 4 * HOUR)
        seen = virtual.engine.book.notices

    async def live():
        async with serving(config) as (daemon, _):
            users = asyncio.create_task(LiveDemo(daemon, crowd, origin).live(seen))
            while daemon.clock.now() < origin + UNTIL or not worth_seeing(daemon):
                await daemon.clock.sleep_until(daemon.clock.now() + HOUR / 12)
                await daemon.usage.look()
            users.cancel()
            await asyncio.gather(users, return_exceptions=True)

    asyncio.run(asyncio.wait_for(live(), 120))
    settings = {name: getattr(config, name) for name in ("pools", "windows", "forecast")}
    return folder, settings


def worth_seeing(daemon):
    """Return whether a pool lends GPUs while a job is pending."""
    state = daemon.service.engine.core.state
    return state.waiting and any(record.loans for record in daemon.service.book.loans())


@pytest.fixture
def shown(lived, devtools, tmp_path):
    """Run a story with a client of that daemon, at real speed, and a browser."""
    folder, settings = lived
    shutil.copytree(folder, tmp_path / "state")
    shots = Path(SHOTS) if SHOTS else tmp_path / "shots"

    def run(tell):
        @story
        async def test(_):
            async with (
                door(tmp_path / "state", speed=1.0, drift="off", **settings) as client,
                chromium(devtools) as browser,
            ):
                await tell(client, browser, shots)

        test(tmp_path)

    return run


async def signed_in(client, browser, path="/ui/", **kind):
    """A page, had by signing in as people do."""
    page = await browser.page(**kind)
    await page.goto(client.make_url("/ui/sign-in"))
    await page.type("#token", TOKEN)
    await page.js("document.querySelector('main form').requestSubmit()")
    await page.until("location.pathname === '/ui/' && document.querySelector('#totals')")
    await page.until("document.readyState === 'complete'")  # scripts have run
    if path != "/ui/":
        await page.goto(client.make_url(path))
    return page


OTHERWISE = ("/ui/events", "/ui/series", "/ui/sign-in", "/ui/assets/{name}")
"""What is below /ui/ and no page, or no page for who is signed in."""


async def a_page_of_each(client):
    """(Name, address) of each kind of page; jobs that run, wait and are over."""
    pools = (await asked(client, "GET", "/v1/pools"))["pools"]
    lender = max(pools, key=lambda pool: pool["lent"])
    assert lender["lent"], "there is something to be seen"
    jobs = {}
    for phase in ("running", "pending"):
        jobs[phase] = (await asked(client, "GET", f"/v1/jobs?phase={phase}&limit=1"))["jobs"][0]
    jobs["ended"] = (await asked(client, "GET", "/v1/history?limit=1"))["jobs"][0]
    for page in pages_of(client, lender["name"], {phase: job["id"] for phase, job in jobs.items()}):
        yield page


def pages_of(client, pool, jobs):
    """(Name, address) of each kind of page, of this pool and these jobs."""
    for route in client.app.router.routes():
        path = route.resource.canonical
        if route.method != "GET" or not path.startswith("/ui/") or path in OTHERWISE:
            continue
        title = path.removeprefix("/ui/").replace("/", "-") or "overview"
        if "{id}" not in path:
            yield title, path.replace("{name}", quote(pool, safe=""))
            continue
        for phase, job in jobs.items():
            yield f"{title}-{phase}", path.replace("{id}", job)


WAYS = {"wide": {}, "dark": {"dark": True}, "phone": {"width": 375}}


def test_every_page_is_shown_without_an_error(shown):
    async def tell(client, browser, shots):
        estimating = asyncio.create_task(client.eta.run())
        await until(lambda: client.eta.outlook is not None)
        for way, kind in WAYS.items():
            out = await browser.page(**kind)
            await out.goto(client.make_url("/ui/sign-in"))
            await judge(out, shots / f"sign-in-{way}.png")
            page = await signed_in(client, browser, **kind)
            async for title, path in a_page_of_each(client):
                await page.goto(client.make_url(path))
                await judge(page, shots / f"{title}-{way}.png")
            assert set(page.asked.values()) == {client.make_url("/").authority}
        estimating.cancel()

    shown(tell)


async def judge(page, shot):
    """Its picture is kept; it has no faults, and nobody has to scroll sideways."""
    await page.shot(shot)
    assert page.wrong == [], shot
    assert await page.faults() == [], shot
    assert await page.js("document.documentElement.scrollWidth <= innerWidth"), shot


def test_numbers_equal_those_of_the_api_and_follow_changes(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser)
        assert await agree(client, page)
        pools = (await asked(client, "GET", "/v1/pools"))["pools"]
        before = await cell(page, pools[0]["name"], "Pending jobs")
        for i in range(3):
            job = {"id": f"held{i}", "pool": pools[0]["name"], "gpus": pools[0]["quota"],
                   "duration": 1e6}  # fmt: skip
            await asked(client, "POST", "/v1/jobs", job, status=201)
        name = pools[0]["name"]
        await page.until(f"{CELLS}.get({name!r})?.at(-2) !== {str(before)!r}")
        assert await agree(client, page)
        assert page.wrong == []

    shown(tell)


CELLS = """new Map([...document.querySelectorAll('#pool-table tbody tr')].map(
row => [row.cells[0].innerText.trim(), [...row.cells].map(each => each.innerText.trim())]))"""


async def cell(page, pool, title):
    titles = await page.js(
        "[...document.querySelectorAll('#pool-table thead th')].map(each => each.innerText.trim())"
    )
    return (await page.js(f"{CELLS}.get({pool!r})"))[titles.index(title)]


async def agree(client, page):
    """Whether page and API come to say the same of each pool."""
    for _ in range(300):
        pools = (await asked(client, "GET", "/v1/pools"))["pools"]
        rows = dict(await page.js(f"[...{CELLS}]"))
        if all(
            rows[pool["name"]][1:2] + rows[pool["name"]][3:8]
            == [str(pool[key]) for key in
                ("quota", "dedicated", "lent", "borrowed", "idle", "waiting")]
            for pool in pools
        ):  # fmt: skip
            return True
        await asyncio.sleep(0.05)
    return False


def test_an_operator_switches_lending_off_and_the_audit_says_so(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser, "/ui/settings")
        await page.click("input[value=off]")
        await page.click("#main form button")
        await page.until("document.querySelector('#notices').innerText.includes('Lending is off')")
        assert not (await asked(client, "GET", "/v1/lending"))["on"]
        records = (await asked(client, "GET", "/v1/audit"))["records"]
        told = [each["record"]["who"] for each in records if each["record"]["what"] == "lending"]
        assert told == ["operator"]  # the cloud goes on submitting
        assert page.wrong == []

    shown(tell)


def test_an_open_page_reports_that_the_session_or_the_daemon_is_gone(shown):
    async def tell(client, browser, _):
        body = {"name": "v", "role": "viewer"}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        page = await browser.page()
        await page.goto(client.make_url("/ui/sign-in"))
        await page.type("#token", token)
        await page.js("document.querySelector('main form').requestSubmit()")
        await page.until("document.querySelector('#totals')")
        await asked(client, "DELETE", "/v1/tokens/v", status=204)
        job = {"pool": "vision", "gpus": 1, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await page.until("document.querySelector('#token')")
        assert "was revoked" in await page.text("#main")
        page = await signed_in(client, browser)
        await client.server.close()
        await page.js("look()")
        await page.until("!document.getElementById('cut').hidden")

    shown(tell)


def test_the_plan_fits_one_screen_and_rows_are_cards_on_a_phone(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser, "/ui/plan", width=1440)
        assert await page.js(
            "document.querySelector('.screen').getBoundingClientRect().bottom <= 900"
        )
        assert await page.js("document.querySelector('#coming-table').checkVisibility()")
        page = await signed_in(client, browser, "/ui/", width=390)
        row = "document.querySelector('#pool-table tbody tr')"
        assert await page.js(f"getComputedStyle({row}).display") == "grid"
        label = f"getComputedStyle({row}.querySelector('.n'), '::before').content"
        assert await page.js(label) == '"GPUs"'
        await page.click("#pool-table thead a")
        await page.until("location.search === '?sort=-name'")

    shown(tell)


def test_a_page_can_be_used_with_the_keyboard_alone(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser)
        await page.key("Tab", 9)
        assert await page.js("document.activeElement.className") == "skip"
        await page.key("Tab", 9)
        await page.key("Tab", 9)
        assert await page.js("document.activeElement.innerText") == "Overview"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.js(outline) == "solid"

    shown(tell)


def test_times_are_local_to_the_reader_and_utc_without_scripts(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser, zone="Asia/Tokyo")
        there = await page.js("document.querySelector('#as-of time').dateTime")
        said = await page.text("#as-of time")
        hour = (int(there[11:13]) + 9) % 24 % 12 or 12
        assert f"{hour}:{there[14:16]}" in said or f"{hour + 12}:{there[14:16]}" in said
        for away, words in AWAY.items():
            if words.startswith("in "):
                assert await page.js(f"distance({away})") == words.removeprefix("in ")
        await page.goto(client.make_url("/ui/jobs"))
        cell = "#job-table td time"
        assert "ago" in await page.text(cell)
        exact = await page.js(f"document.querySelector({cell!r}).title")
        await page.click("#exact")
        assert await page.text(cell) == exact
        still = await browser.page(scripts=False)
        await still.goto(client.make_url("/ui/"))
        async with visiting(client) as visitor:
            assert "UTC</time>" in await seen(visitor, "/ui/")

    shown(tell)


def test_the_scroll_position_is_kept_when_numbers_change(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser)
        await page.js("document.querySelector('#pool-table tbody a').focus()")
        await page.js("document.activeElement.mark = true")
        job = {"pool": "vision", "gpus": 1, "duration": 1e6}
        text = await page.text("#as-of")
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await page.until(f"document.querySelector('#as-of').innerText !== {text!r}")
        assert await page.js("document.activeElement.mark")

    shown(tell)


EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\u202e\u2066{{7*7}}"


def test_hostile_names_are_shown_as_text(devtools, tmp_path):
    @story
    async def tell(folder):
        pools = (PoolConfig(EVIL, 4), PoolConfig("b" * 200, 4))
        async with door(folder, pools=pools, speed=1.0) as client, chromium(devtools) as browser:
            job = {"gpus": 3, "duration": 1e6, "name": EVIL, "user": EVIL, "tags": {EVIL: EVIL},
                   "command": [EVIL, "x" * 4000]}  # fmt: skip
            for i, pool in enumerate(pools * 2):
                await asked(client, "POST", "/v1/jobs", {**job, "id": f"j{i}", "pool": pool.name},
                            status=201)  # fmt: skip
            for pool in pools:
                page = await signed_in(client, browser, width=375)
                for title, path in pages_of(client, pool.name, {"of-a": "j0", "of-b": "j3"}):
                    await page.goto(client.make_url("/").join(URL(path, encoded=True)))
                    await judge(page, tmp_path / "shots" / f"hostile-{title}.png")
                    assert await page.js("window.hacked === undefined"), title
                    assert "49" not in (await page.text("h1")), title
            assert pools[0].name in await overview(client, page)

    tell(tmp_path)


async def overview(client, page):
    await page.goto(client.make_url("/ui/"))
    return await page.js("document.querySelector('#pool-table').textContent")


def test_markup_injected_into_a_page_is_not_run(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser)
        for evil in (
            "<img src=x onerror='window.hacked=1'>", "<img src='https://example.com/x.png'>",
            "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
            "<form action='https://example.com/'><button id=away></button></form>",
        ):  # fmt: skip
            await page.js(f"document.body.insertAdjacentHTML('beforeend', {evil!r})")
        await page.click("#away")
        said = [each.get("text", "") for each in page.wrong if isinstance(each, dict)]
        while len([each for each in said if "Content Security Policy" in each]) < 4:
            await asyncio.sleep(0.02)
            said = [each.get("text", "") for each in page.wrong if isinstance(each, dict)]
        assert await page.js("window.hacked === undefined")
        assert await page.js("location.pathname") == "/ui/"
        assert set(page.asked.values()) == {client.make_url("/").authority}

    shown(tell)


def test_a_node_is_drained_and_a_job_put_first_by_hand(devtools, tmp_path):
    @story
    async def tell(folder):
        nodes = (NodeConfig("n0", 8), NodeConfig("n1", 4))
        pools = (PoolConfig("vision", 12),)
        async with (
            door(folder, pools=pools, nodes=nodes, speed=1.0) as client,
            chromium(devtools) as browser,
        ):
            for job in ("runs", "first", "second"):
                body = {"id": job, "pool": "vision", "gpus": 8, "duration": 1e6}
                await asked(client, "POST", "/v1/jobs", body, status=201)
            page = await signed_in(client, browser, "/ui/nodes", width=375)
            await page.click("#node-table tbody tr:nth-child(2) summary")
            await page.type("#node-table tbody tr:nth-child(2) input[name=why]", "fan")
            await judge(page, tmp_path / "shots" / "nodes-drain.png")
            await page.click("#node-table tbody tr:nth-child(2) button")
            await page.until("document.querySelector('[action=\"/ui/nodes/n1/resume\"]')")
            listed = (await asked(client, "GET", "/v1/nodes"))["nodes"]
            assert [node["out"] for node in listed] == [{}, {"operator": "fan"}]
            await page.click("#node-table tbody tr:nth-child(2) button")
            await page.until("!document.querySelector('[action=\"/ui/nodes/n1/resume\"]')")
            await page.goto(client.make_url("/ui/jobs/second"))
            await page.js("document.querySelector('#priority').select()")
            await page.type("#priority", "9")
            await page.click("#changes form.one button")
            await page.until("document.querySelector('#facts').innerText.includes('Priority\\n9')")
            await judge(page, tmp_path / "shots" / "job-priority.png")
            assert (await asked(client, "GET", "/v1/jobs/second"))["position"] == 1
            await page.goto(client.make_url("/ui/settings"))
            await judge(page, tmp_path / "shots" / "settings-sessions.png")
            await page.click("[action='/ui/sign-out-everywhere'] button")
            await page.until("document.querySelector('#token')")
            records = [
                each["record"] for each in (await asked(client, "GET", "/v1/audit"))["records"]
            ]
            assert [each["what"] for each in records[-4:]] == [
                "drain", "resume", "priority", "token sign-out",
            ]  # fmt: skip

    tell(tmp_path)


def test_an_opened_row_stays_open_when_rows_come_and_go(devtools, tmp_path):
    @story
    async def tell(folder):
        nodes = tuple(NodeConfig(f"n{i}", 8) for i in range(3))
        async with (
            door(folder, pools=(PoolConfig("vision", 24),), nodes=nodes, speed=1.0) as client,
            chromium(devtools) as browser,
        ):
            page = await signed_in(client, browser, "/ui/nodes?state=free")
            await page.click("#node-table tbody tr:nth-child(2) summary")
            await page.js("document.querySelector('#node-n1').mark = true")
            await page.type("#node-n1 input[name=why]", "fan")
            job = {"id": "fills", "pool": "vision", "gpus": 8, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", job, status=201)
            await page.until("!document.querySelector('#node-n0')")
            assert (await page.text("#node-table tbody tr")).startswith("n1")
            here = "document.activeElement === document.querySelector('#node-n1 [name=why]')"
            assert await page.js(here), "what was being typed goes on"
            await asked(client, "DELETE", "/v1/jobs/fills", status=202)
            await page.until("document.querySelector('#node-n0')")
            assert await page.js(OPEN) == ["node-n1"]
            assert await page.js("document.querySelector('#node-n1').mark")
            await asked(client, "POST", "/v1/jobs", {**job, "id": "again"}, status=201)
            await page.until("!document.querySelector('#node-n0')")
            await page.click("details[open] button")
            await page.until("!document.querySelector('#node-n1')")
            listed = (await asked(client, "GET", "/v1/nodes"))["nodes"]
            assert {each["name"]: each["out"] for each in listed} == {
                "n0": {}, "n1": {"operator": "fan"}, "n2": {},
            }  # fmt: skip
            assert page.wrong == []

    tell(tmp_path)


OPEN = "[...document.querySelectorAll('tr:has(details[open])')].map(row => row.id)"


def test_the_chosen_token_stays_chosen_when_tokens_come_and_go(devtools, tmp_path):
    @story
    async def tell(folder):
        async with door(folder, speed=1.0) as client, chromium(devtools) as browser:
            for name in ("ann", "bob", "eve"):
                body = {"name": name, "role": "viewer"}
                await asked(client, "POST", "/v1/tokens", body, status=201)
            page = await signed_in(client, browser, "/ui/settings")
            await page.click("#token-bob summary")
            await asked(client, "DELETE", "/v1/tokens/ann", status=204)
            await page.js("look()")
            await page.until("!document.querySelector('#token-ann')")
            assert await page.js(OPEN) == ["token-bob"]
            await judge(page, tmp_path / "shots" / "settings-end-all.png")
            await page.click("details[open] button")
            await page.until("!document.querySelector('details[open]')")
            records = (await asked(client, "GET", "/v1/audit"))["records"]
            assert (records[-1]["record"]["what"], records[-1]["record"]["target"]) == (
                "token sign-out", "bob",
            )  # fmt: skip

    tell(tmp_path)


MATCHED = """(before, after) => {
const made = text => new DOMParser().parseFromString(`<ul>${text}</ul>`, 'text/html').body;
const old = made(before), there = new Map();
for (const each of old.querySelectorAll('[id]')) there.set(each.id, each);
become(old, made(after));
return old.innerHTML === made(after).innerHTML
&& [...old.querySelectorAll('[id]')].every(e => !there.has(e.id) || there.get(e.id) === e);
}"""


def test_updated_lists_are_correct_and_named_rows_keep_their_elements(devtools, tmp_path):
    rows = random.Random(12)

    def some():
        named = rows.sample("abcdef", rows.randrange(7))
        lines = [f"<li id={name}>{rows.random()}" for name in named]
        lines += ["<li>plain"] * rows.randrange(3) + ["words"] * rows.randrange(3)
        rows.shuffle(lines)
        return "\n".join(lines)

    @story
    async def tell(folder):
        async with door(folder, speed=1.0) as client, chromium(devtools) as browser:
            page = await signed_in(client, browser)
            for _ in range(200):
                before, after = some(), some()
                assert await page.js(f"({MATCHED})({before!r}, {after!r})"), (before, after)

    tell(tmp_path)


PLOT = "document.querySelector('[data-metric=gpus] .u-over')"
TIMES = "document.querySelector('#table-gpus tbody').textContent"
LEGEND = "document.querySelector('[data-metric=gpus] .u-legend').innerText"


def test_charts_show_the_values_under_the_pointer_and_zoom_together(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser)
        await page.until("document.querySelectorAll('#charts .u-over').length > 4")
        await page.js(f"{PLOT}.scrollIntoView({{block: 'center'}})")
        newest = await page.js(LEGEND)
        assert "dedicated" in newest
        box = await page.js(f"(({{x, y, width, height}}) => [x, y, width, height])({BOX})")
        x, y, width, height = box
        middle = y + height / 2
        await mouse(page, "mouseMoved", x + 10, middle)
        await page.until(f"{LEGEND} !== {newest!r}")
        whole = await page.js(TIMES)
        await mouse(page, "mousePressed", x + width * 0.6, middle)
        await mouse(page, "mouseMoved", x + width * 0.9, middle)
        await mouse(page, "mouseReleased", x + width * 0.9, middle)
        await page.until(f"{TIMES} !== {whole!r} && document.querySelector('#charts-whole a')")
        query = "new URLSearchParams(location.search)"
        begin, end = [await page.js(f"Date.parse({query}.get('{key}'))") for key in ("from", "to")]
        assert end > begin
        for key, time in (("from", begin), ("to", end)):  # in the reader's time zone
            assert await page.js(f"+new Date(document.getElementById('{key}').value)") == time
        menu = await page.js("[...document.querySelectorAll('#menu a')].map(a => a.href)")
        assert all("from=" in link and "to=" in link for link in menu)
        await page.js("history.back()")
        await page.until("!location.search && !document.querySelector('#charts-whole a')")
        await page.js("history.forward()")
        await page.until("location.search && document.querySelector('#charts-whole a')")
        await page.js("window.left = 1, document.querySelector('#choose form').requestSubmit()")
        await page.until("document.readyState === 'complete' && !window.left")
        assert await page.js(f"Date.parse({query}.get('from'))") == begin
        await page.until("document.querySelectorAll('#charts .u-over').length > 4")
        assert not await page.js("document.querySelector('details.numbers').open")
        assert page.wrong == []

    shown(tell)


BOX = f"{PLOT}.getBoundingClientRect()"


async def mouse(page, kind, x, y):
    """Move the pointer, or use its left button."""
    held = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" else {}
    await page.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)


def test_charts_follow_new_samples(shown):
    async def tell(client, browser, _):
        page = await signed_in(client, browser)
        await page.until("document.querySelectorAll('#charts .u-over').length > 4")
        await page.js(f"window.first = {PLOT}")
        await client.usage.look()
        job = {"id": "new", "pool": "vision", "gpus": 1, "duration": 60.0}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await page.until(f"window.first !== {PLOT}")
        assert page.wrong == []

    shown(tell)
