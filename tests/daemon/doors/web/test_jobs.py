"""Pages of jobs: the queue, lists, one job, an array; what they say is what the API says."""

import re

from daemon.backends.local.config import LocalConfig
from daemon.config.config import PoolConfig
from daemon.doors.views.html import name, plain, value
from tests.daemon.answers.test_eta import taught
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.servers.browsers import browser, parsed, seal_in, seen, sent, when

HOSTILE = "<script>alert('x')</script><img src=x onerror=y>\u202eevil"


async def token_of(client, **kind):
    return (await asked(client, "POST", "/v1/tokens", {"name": "t", **kind}, status=201))["token"]


async def send(client, job_id, pool="vision", gpus=8, **more):
    job = {"id": job_id, "pool": pool, "gpus": gpus, "duration": 1e6, **more}
    await asked(client, "POST", "/v1/jobs", job, status=201)


def rows_in(html):
    """The text of each row of all tables."""
    return [parsed(row)[1] for row in re.findall(r"<tr\b[^>]*>(.*?)</tr>", html, re.DOTALL)]


@story
async def test_the_queue_page_shows_what_the_api_says(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await send(client, "runs", user="ann")
        for i in range(3):
            await send(client, f"w{i}", user="bob", name=HOSTILE)
        page = await seen(visitor, "/ui/queue?pool=vision&user=")
        said = (await asked(client, "GET", "/v1/queue"))["jobs"]
        assert [each["job"]["id"] for each in said] == ["w0", "w1", "w2"]
        for each, row in zip(said, rows_in(page)[1:], strict=True):
            job = each["job"]
            assert row.startswith(f"{each['position']} {job['id']} ")
            assert f"{job['pool']} {job['user']} {job['gpus']}" in row
            assert row.endswith(each["waits"])
        assert "3 jobs" in parsed(page)[1]
        assert rows_in(await seen(visitor, "/ui/queue?what=running"))[1].startswith("runs vision")
        assert "No jobs match" in await seen(visitor, "/ui/queue?what=held")


@story
async def test_a_job_is_found_by_its_id(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await send(client, "train-17")
        assert "Job <bdi>train-17</bdi>" in await seen(visitor, "/ui/jobs?job=%20train-17%20")
        assert (
            "There is no job 'a/../b'" in parsed(await seen(visitor, "/ui/jobs?job=a/../b", 404))[1]
        )


@story
async def test_a_long_queue_is_shown_by_pages(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await send(client, "a", gpus=8, array=250)
        ids = []
        for page, count in ((1, 100), (2, 100), (3, 49)):
            html = await seen(visitor, f"/ui/queue?page={page}")
            found = [row.split()[1] for row in rows_in(html)[1:]]
            assert len(found) == count
            assert (f"page={page + 1}" in html) is (page < 3)
            ids += found
        assert ids == [f"a.{i}" for i in range(1, 250)]
        assert "No jobs match" in await seen(visitor, "/ui/queue?page=4")
        html = await seen(visitor, "/ui/jobs?phase=pending")
        more = re.search(r'rel="next" href="([^"]*)"', html)[1].replace("&amp;", "&")
        first, second = rows_in(html)[1:], rows_in(await seen(visitor, more))[1:]
        assert len(first) == len(second) == 100
        assert not {row.split()[0] for row in first} & {row.split()[0] for row in second}
        array = await seen(visitor, "/ui/jobs/a?page=3")
        assert len(rows_in(array)) == 51
        assert "250 jobs: 1 running, 249 pending" in parsed(array)[1]


@story
async def test_the_reason_of_a_pending_job_is_that_of_the_api(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await send(client, "runs", time_limit=600)
        await job_in(client, "runs", "running")
        await send(client, "waits", user="ann", time_limit=60, tags={"team": HOSTILE})
        now = client.service.clock.now()
        client.service.clock.now = lambda: now  # page and API are asked at the same time
        page = await seen(visitor, "/ui/jobs/waits")
        text = parsed(page)[1]
        why = await asked(client, "GET", "/v1/jobs/waits/why")
        assert why["obstacles"]
        for line in why["words"]:
            assert line[1:] in text
        job = await asked(client, "GET", "/v1/jobs/waits")
        assert f"Position {job['position']} in its pool" in text
        assert when(job["submitted"]) in page
        for obstacle in why["obstacles"]:
            assert obstacle["type"] == "quota"
            assert f"short {obstacle['short']} · left {obstacle['left']}" in text
        running = parsed(await seen(visitor, "/ui/jobs/runs"))[1]
        for line in (await asked(client, "GET", "/v1/jobs/runs/why"))["words"]:
            assert line[1:] in running


@story
async def test_estimates_equal_those_of_the_api_now_and_earlier(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        taught(client)
        client.eta.ready = True
        await send(client, "runs")
        await job_in(client, "runs", "running")
        await send(client, "waits")
        await client.eta.look()
        page = await seen(visitor, "/ui/jobs/waits")
        eta = await asked(client, "GET", "/v1/jobs/waits/eta")
        assert eta["given"]
        times = [each for given in eta["given"] for each in (given["start"], given["end"])]
        for each in times:
            for quantile in ("p50", "p90"):
                assert when(each[quantile]) in page
        assert "(estimate)" in page
        row = (await asked(client, "GET", "/v1/queue"))["jobs"][0]["estimate"]["start"]
        html = await seen(visitor, "/ui/queue")
        assert when(row["p90"]) in html


@story
async def test_actions_on_a_job_are_offered_only_to_those_with_permission(folder):
    async with door(folder, speed=1.0) as client:
        await send(client, "runs")
        await send(client, "own")
        mine = await token_of(client, role="submitter", pools=["vision"])
        looks = await token_of(client, name="v", role="viewer")
        other = await token_of(client, name="o", role="submitter", pools=["speech"])
        async with browser(client, mine) as visitor:
            page = await seen(visitor, "/ui/jobs/own")
            form = seal_in(page)
            for what, phase, offered in (
                ("hold", "held", "release"), ("release", "pending", "hold"),
                ("cancel", "cancelled", None),
            ):  # fmt: skip
                assert f"/ui/jobs/own/{what}" in page
                there = await sent(visitor, f"/ui/jobs/own/{what}", form=form)
                assert there == (303, "/ui/jobs/own")
                assert (await asked(client, "GET", "/v1/jobs/own"))["phase"] == phase
                page = await seen(visitor, "/ui/jobs/own")
                assert offered is None or f"/ui/jobs/own/{offered}" in page
            assert "/ui/jobs/own/" not in page
            status, text = await sent(visitor, "/ui/jobs/own/hold", form=form)
            assert status == 409, text
            assert (await sent(visitor, "/ui/jobs/runs/cancel"))[0] == 403
        async with browser(client, looks) as visitor:
            page = await seen(visitor, "/ui/jobs/runs")
            assert "/ui/jobs/runs/" not in page
            assert "log" not in parsed(page)[1]
            form = seal_in(page)
            assert (await sent(visitor, "/ui/jobs/runs/cancel", form=form))[0] == 403
        async with browser(client, other) as visitor:
            unknown = (await seen(visitor, "/ui/jobs/nobody", 404)).replace("nobody", "runs")
            hidden = await seen(visitor, "/ui/jobs/runs", 404)
            assert _timeless(hidden) == _timeless(unknown)
            form = seal_in(hidden)
            status, text = await sent(visitor, "/ui/jobs/runs/cancel", form=form)
            assert status == 404
            for path in ("/ui/queue", "/ui/queue?what=running", "/ui/jobs", "/ui/jobs?pool=vision"):
                assert "runs</bdi>" not in await seen(visitor, path)
        assert (await asked(client, "GET", "/v1/jobs/runs"))["phase"] == "running"


def _timeless(html):
    return re.sub(r"<time.*?</time>|data-now=\S+", "", html)


@story
async def test_an_array_is_cancelled_as_a_whole(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await send(client, "a", gpus=4, array=3)
        page = await seen(visitor, "/ui/jobs/a")
        assert await sent(visitor, "/ui/jobs/a/cancel", form=seal_in(page)) == (303, "/ui/jobs/a")
        assert "/ui/jobs/a" in await seen(visitor, "/ui/jobs/a.2")
        for i in range(3):
            await job_in(client, f"a.{i}", "cancelled")
        assert "3 cancelled" in parsed(await seen(visitor, "/ui/jobs/a"))[1]


@story
async def test_names_and_texts_from_outside_are_escaped(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        great = (HOSTILE * 200)[:4096]
        names = (HOSTILE, "<b>" * 66, "\u202e\u2067" * 90)
        await send(client, "first")
        for i, name in enumerate(names):
            await send(
                client, f"j{i}", name=name, user=name, tags={name: name}, cwd=great,
                command=["echo", great],
            )  # fmt: skip
        for path in ("/ui/queue", "/ui/jobs", "/ui/jobs/j0", "/ui/jobs/j1", "/ui/jobs/j2"):
            page = await seen(visitor, path)
            tags, text = parsed(page)
            assert not {"b", "img"} & {tag for tag, _ in tags}
            assert [tag for tag, _ in tags].count("script") == 1
            assert not any(key.startswith("on") for _, attributes in tags for key in attributes)
            outside = re.sub(r"<(bdi|pre|title|option)\b.*?</\1>", "", page, flags=re.DOTALL)
            assert not re.search("[\u202a-\u202e\u2066-\u2069]", outside)
            if path[-1] in "012":
                assert names[int(path[-1])] in text


@story
async def test_the_name_of_a_pool_does_not_turn_the_reason_around(folder):
    pools = (PoolConfig("\u202eevil", 2),)
    async with door(folder, pools=pools, speed=1.0) as client, browser(client) as visitor:
        for i in range(2):
            body = {"id": f"j{i}", "pool": "\u202eevil", "gpus": 2, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", body, status=201)
        for path in ("/ui/queue", "/ui/jobs/j1"):
            page = await seen(visitor, path)
            assert "evil has 0 of 2 free" in page
            outside = re.sub(r"<(bdi|title|option)\b.*?</\1>", "", page, flags=re.DOTALL)
            assert "\u202e" not in outside


def test_a_long_name_is_truncated():
    assert len(name("x" * 4096)) < 250
    assert "<" not in name("<" * 4096).replace("<bdi>", "").replace("</bdi>", "")


@story
async def test_the_end_of_a_log_is_shown_as_text(folder):
    config = LocalConfig(gpus=1, folder=str(folder / "jobs"))
    pools = (PoolConfig("vision", 1),)
    async with door(folder, pools=pools, backend=config) as client, browser(client) as visitor:
        said = r"seq 1 9000; printf '<script>x</script>\033[31mred\033[0m\000\rend\n'; echo e >&2"
        job = {"id": "a", "pool": "vision", "gpus": 1, "command": ["sh", "-c", said]}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "a", "finished")
        page = await seen(visitor, "/ui/jobs/a")
        text = parsed(page)[1]
        assert "8999 9000 <script>x</script>red end" in text
        assert "1 2 3 4" not in text
        assert "\x1b" not in page
        assert "\0" not in page
        assert ">e\n<" in await seen(visitor, "/ui/jobs/a?stream=stderr")
        async with client.get("/v1/jobs/a/log?tail=5") as response:
            assert await response.text() == "\rend\n"
        await seen(visitor, "/ui/jobs/a?stream=stdin", 422)


def test_terminal_control_characters_are_left_out():
    assert plain("a\r\nb\rc\x1b[1;31md\x07\x9b\te") == "a\nb\ncd\te"


def test_an_audit_record_shows_reasons_as_people_write_them():
    assert value({"operator": "fan replaced", "maintenance": ""}) == name(
        "operator: fan replaced; maintenance"
    )
    assert value({}) == value("") == value(None) == name("–")
    assert value({"gpus": 4}) == name('{"gpus":4}')
