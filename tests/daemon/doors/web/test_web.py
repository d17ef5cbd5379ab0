"""Pages: who is let in, what a browser is told to mistrust, and that numbers are the API's."""

import asyncio
import gzip
import re
from itertools import chain
from random import Random
from unittest.mock import patch
from urllib.parse import quote

import pytest
from yarl import URL

from daemon.config.access import TlsConfig
from daemon.config.config import PoolConfig
from daemon.doors.http.authentication import LASTS, MOST, UI, Session, Sessions
from daemon.doors.http.csrf import MAX_FORM
from daemon.doors.http.operations import Operation
from daemon.doors.web.page import HEADERS, HTML, PageSet
from daemon.doors.web.pages.pool import windows_of
from daemon.doors.web.pages.table import PAGES
from daemon.model.access import Rule
from daemon.wire.plan import PoolForecast
from tests.support.daemons.doors import TOKEN, asked, door, story
from tests.support.servers.browsers import PAGE, browser, parsed, seal_in, seen, sent


async def token_of(client, **kind):
    return (await asked(client, "POST", "/v1/tokens", {"name": "t", **kind}, status=201))["token"]


@story
async def test_without_a_session_the_page_shows_the_sign_in_form(folder):
    async with door(folder) as client, browser(client, None) as visitor:
        async with visitor.get("/", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "/ui/")
        page = await seen(visitor, "/ui/pools/vision?x=1", 401)
        assert 'name="to" value="/ui/pools/vision?x=1"' in page
        assert 'role="alert"' not in page  # who has typed nothing yet has done nothing wrong
        status, to = await sent(visitor, "/ui/sign-in", token=TOKEN, to="/ui/pools/vision")
        assert (status, to) == (303, "/ui/pools/vision")
        assert "Pool <bdi>vision</bdi>" in await seen(visitor, to)
        form = seal_in(await seen(visitor, "/ui/"))
        assert await sent(visitor, "/ui/sign-out", form=form) == (303, "/ui/sign-in")
        await seen(visitor, "/ui/", 401)


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example/ui/", "/\\evil.example", "/v1/jobs", "/ui", "",
     "/ui/\\..", "javascript:alert(1)", "/ui/\r\nSet-Cookie: a=b", "/ui/ü", "http:/ui/"],
)  # fmt: skip
def test_signing_in_redirects_only_to_our_pages(tmp_path, elsewhere):
    @story
    async def tell(folder):
        async with door(folder) as client, browser(client, None) as visitor:
            there = await sent(visitor, "/ui/sign-in", token=TOKEN, to=elsewhere)
            assert there == (303, "/ui/")

    tell(tmp_path)


@story
async def test_a_session_belongs_to_its_token_and_ends_with_it(folder):
    async with door(folder) as client:
        token = await token_of(client, role="viewer")
        async with browser(client, token) as visitor:
            assert "viewer" in await seen(visitor, "/ui/")
            await asked(client, "DELETE", "/v1/tokens/t", status=204)
            page = await seen(visitor, "/ui/", 401)
            assert "was revoked" in page
            status, page = await sent(visitor, "/ui/sign-in", token=token, to="/ui/")
            assert status == 401
            assert token not in page


@story
async def test_a_session_whose_token_expires_is_over(folder):
    async with door(folder, speed=1.0) as client:
        token = await token_of(client, role="viewer", lasts=60)
        async with browser(client, token) as visitor:
            clock = client.service.clock
            later = clock.now() + 61.0
            with patch.object(clock, "now", lambda: later):
                assert "the token t has expired" in (await seen(visitor, "/ui/", 401)).lower()


@story
async def test_the_event_stream_of_a_page_ends_with_its_session(folder):
    async with door(folder) as client, browser(client) as visitor:
        headers = {"Accept": "text/event-stream"}
        async with visitor.get("/ui/events", headers=headers) as stream:
            assert b"resume" in await stream.content.readline()
            job = {"id": "a", "pool": "vision", "gpus": 1, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", job, status=201)
            while b"event: submitted" not in await stream.content.readline():
                pass
            with patch("daemon.doors.http.authentication.time.time", lambda: 1e12):
                await asked(client, "DELETE", "/v1/jobs/a", status=202)
                rest = await asyncio.wait_for(stream.content.read(), 60)
        assert b"event: cancelled" not in rest


@story
async def test_a_cookie_is_accepted_only_for_pages_and_hidden_from_scripts(folder):
    async with door(folder) as client, browser(client, None) as visitor:
        fields = {"token": TOKEN, "to": "/ui/"}
        async with visitor.post("/ui/sign-in", data=fields, allow_redirects=False) as response:
            said = response.headers["Set-Cookie"]
        assert TOKEN not in said
        assert {"HttpOnly", "SameSite=Strict", "Path=/ui"} <= set(said.split("; "))
        name, _, value = said.partition(";")[0].partition("=")
        headers = {"Cookie": f"{name}={value}"}
        async with visitor.get("/v1/pools", headers=headers) as response:
            assert response.status == 401


def cookies(sessions):
    """What a session of a token would be, and some that nobody was given."""
    session = Session("a" * 64, 7)

    class Response:
        def set_cookie(self, name, value, **_):
            self.value = value

    response = Response()
    sessions.begin(response, session)
    return session, response.value


def test_a_seal_is_valid_only_for_its_daemon_and_its_lifetime():
    sessions = Sessions("secret", "main")
    session, cookie = cookies(sessions)
    assert sessions.read(cookie) == session
    assert Sessions("another", "main").read(cookie) is None
    for i in range(len(cookie)):
        other = "0" if cookie[i] != "0" else "1"
        assert sessions.read(cookie[:i] + other + cookie[i + 1 :]) is None
    for wrong in (
        "",
        ".",
        "..",
        "a.b.c",
        f"{session.digest}.0.9999999999.",
        "é" * MOST,
        "\udcff.1.2",
    ):
        assert sessions.read(wrong) is None
    with patch("daemon.doors.http.authentication.time.time", lambda: 1e12):
        assert sessions.read(cookie) is None
    assert len(cookie) < MOST
    assert LASTS <= 86400


@story
async def test_a_forged_session_is_refused(folder):
    async with door(folder) as client, browser(client, None) as visitor:
        _, forged = cookies(Sessions("guessed", "main"))
        for value in (forged, "x", "a" * 5000, '"', "\x80\xff"):
            headers = {**PAGE, "Cookie": f"sia_main={value}"}
            async with visitor.get("/ui/", headers=headers) as response:
                assert response.status == 401
                text = parsed(await response.text())[1]
                assert "session has ended" in text or "token is missing" in text


@story
async def test_a_change_is_accepted_only_from_a_form_of_the_same_session(folder):
    async with door(folder) as client, browser(client) as visitor:
        form = seal_in(await seen(visitor, "/ui/settings"))
        path = "/ui/settings/lending"
        for wrong in ({}, {"form": ""}, {"form": "0" * 64}, {"form": "é"}):
            status, page = await sent(visitor, path, mode="off", **wrong)
            assert status == 403, page
        cross = {"Sec-Fetch-Site": "same-site"}  # another port of this host
        assert (await sent(visitor, path, mode="off", form=form, headers=cross))[0] == 403
        another = await token_of(client, role="operator")
        async with browser(client, another) as other:
            others = seal_in(await seen(other, "/ui/settings"))
        assert others != form
        assert (await sent(visitor, path, mode="off", form=others))[0] == 403
        assert (await asked(client, "GET", "/v1/lending"))["on"]
        assert (await sent(visitor, path, mode="off", form=form))[0] == 303
        assert not (await asked(client, "GET", "/v1/lending"))["on"]


@story
async def test_lending_is_switched_and_audited_under_the_token_s_name(folder):
    async with door(folder) as client:
        token = await token_of(client, role="operator")
        async with browser(client, token) as visitor:
            form = seal_in(await seen(visitor, "/ui/settings"))
            for mode in ("shadow", "off", "on"):
                status, to = await sent(visitor, "/ui/settings/lending", mode=mode, form=form)
                assert (status, to) == (303, "/ui/settings")
                page = await seen(visitor, to)
                assert re.search(rf'value="{mode}" checked', page)
            for wrong in ({"mode": "no"}, {}):
                status, page = await sent(visitor, "/ui/settings/lending", form=form, **wrong)
                assert status == 422
        records = (await asked(client, "GET", "/v1/audit"))["records"]
        switched = [each["record"] for each in records if each["record"]["what"] == "lending"]
        assert [record["who"] for record in switched] == ["t"] * 3
        assert switched[1]["after"] == {"shadow": False}


@story
async def test_a_viewer_sees_no_switch_and_an_attempt_is_audited(folder):
    async with door(folder) as client:
        token = await token_of(client, role="viewer")
        async with browser(client, token) as visitor:
            page = await seen(visitor, "/ui/settings")
            assert "/ui/settings/lending" not in page
            form = seal_in(page)
            status, page = await sent(visitor, "/ui/settings/lending", mode="off", form=form)
            assert status == 403
            assert "it may not operate the daemon" in page
        assert (await asked(client, "GET", "/v1/lending"))["on"]
        records = str((await asked(client, "GET", "/v1/audit"))["records"])
        assert "/ui/settings/lending" in records


@story
async def test_every_page_forbids_content_from_other_origins(folder):
    async with door(folder) as client, browser(client) as visitor:
        for path in ("/ui/", "/ui/settings", "/ui/sign-in", "/ui/none", "/ui/assets/sia.js"):
            async with visitor.get(path) as response:
                text = await response.text()
                policy = response.headers["Content-Security-Policy"]
                assert policy == HEADERS["Content-Security-Policy"]
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                kept = "immutable" in response.headers["Cache-Control"]
                assert kept is ("assets" in path)
            if "assets" in path:
                continue
            tags, _ = parsed(text)
            for tag, attributes in tags:
                assert not any(each.startswith("on") or each == "style" for each in attributes)
                for place in ("href", "src", "action"):
                    assert attributes.get(place, "/").startswith(("/ui/", "#", "/")), tag
                    assert not attributes.get(place, "").startswith("//")
                assert tag != "style"
                assert tag != "script" or "src" in attributes


@story
async def test_the_overview_says_what_the_api_says(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        for i in range(4):
            job = {"id": f"j{i}", "pool": "speech", "gpus": 3, "duration": 1e6, "time_limit": 60}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        pools = (await asked(client, "GET", "/v1/pools"))["pools"]
        _, text = parsed(await seen(visitor, "/ui/"))
        for what, title in (("quota", "GPUs owned"), ("lent", "lent"), ("idle", "idle")):
            assert f"{title} {sum(pool[what] for pool in pools)}" in text
        for pool in pools:
            row = " ".join(str(pool[key]) for key in (
                "name", "quota", "dedicated", "lent", "borrowed", "idle", "waiting", "state"
            ))  # fmt: skip
            assert row in text
        assert sum(pool["lent"] for pool in pools) > 0


@story
async def test_an_invisible_pool_shows_its_numbers_but_not_its_account(folder):
    async with door(folder, speed=1.0) as client:
        for pool in ("vision", "speech"):
            job = {"id": f"of-{pool}", "pool": pool, "gpus": 1, "duration": 1e6}
            await asked(client, "POST", "/v1/jobs", job, status=201)
        token = await token_of(client, role="viewer", pools=["vision"])
        async with browser(client, token) as visitor:
            own, other = [await seen(visitor, f"/ui/pools/{p}") for p in ("vision", "speech")]
        assert "Slowed jobs" in own
        assert "Slowed jobs" not in other
        assert "you may not see it" in other


@story
async def test_names_cannot_be_paths_of_the_api(folder):
    async with door(folder) as client, browser(client) as visitor:
        for name in ("..%2f..%2fv1%2fjobs", "%3Fx=1", "a%00b", "%3Cscript%3Ealert(1)%3C/script%3E",
                     "{name}", "%E2%80%AEx"):  # fmt: skip
            page = await seen(visitor, f"/ui/pools/{name}", 404)
            assert "<script>alert" not in page
        await seen(visitor, "/ui/assets/..%2fpages.py", 404)


def test_with_tls_the_cookie_is_sent_only_over_tls(tmp_path):
    @story
    async def tell(folder):
        tls = TlsConfig(terminated_by_proxy=True)
        async with door(folder, tls=tls) as client, browser(client, None) as visitor:
            fields = {"token": TOKEN, "to": "/ui/"}
            async with visitor.post("/ui/sign-in", data=fields, allow_redirects=False) as said:
                cookie = said.headers["Set-Cookie"]
            assert cookie.startswith("__Secure-sia_main=")
            assert "Secure" in cookie.split("; ")
            headers = {**PAGE, "Cookie": cookie.partition(";")[0]}
            async with visitor.get("/ui/", headers=headers) as said:
                assert said.status == 200
            headers = {**PAGE, "Cookie": headers["Cookie"].removeprefix("__Secure-")}
            async with visitor.get("/ui/", headers=headers) as said:
                assert said.status == 401  # whoever is not encrypted cannot put one there

    tell(tmp_path)


HOSTILE = (
    "<script>alert(1)</script>",
    'a" onmouseover="alert(1)',
    "a/b?c#d&e",
    "\u202eevil",
    "%> 100%25 <!--",
    "{}",
    "{name}",
    "{{7*7}}{% x %}",
    "{0.__class__}",
)


@story
async def test_any_name_of_a_pool_is_shown_as_it_is(folder):
    pools = tuple(PoolConfig(name, 2) for name in HOSTILE)
    async with door(folder, pools=pools) as client, browser(client) as visitor:
        page = await seen(visitor, "/ui/")
        tags, text = parsed(page)
        links = [attributes["href"] for tag, attributes in tags if tag == "a"]
        assert not [tag for tag, attributes in tags if tag == "script" and "src" not in attributes]
        assert not [tag for tag, attributes in tags if "onmouseover" in attributes]
        for name in HOSTILE:
            assert name in text
            assert f"/ui/pools/{quote(name, safe='')}" in links
            address = URL(f"/ui/pools/{quote(name, safe='')}", encoded=True)
            assert f"Pool {name}" in parsed(await seen(visitor, address))[1]


@story
async def test_many_pools_are_shown_by_pages_and_filtered_by_name(folder):
    pools = tuple(PoolConfig(f"p{i:03}", i % 7 + 1) for i in range(250))
    async with door(folder, pools=pools) as client, browser(client) as visitor:

        async def names(query):
            page = await seen(visitor, f"/ui/{query}")
            return re.findall(r'href="/ui/pools/(\w+)"', page), parsed(page)[1]

        all_ = [pool.name for pool in pools]
        found = [(await names(f"?page={i}"))[0] for i in (1, 2, 3)]
        assert [*chain(*found)] == all_
        assert (await names("?page=99"))[0] == found[2]
        rows, text = await names("?sort=-quota&page=1")
        assert rows == [p.name for p in sorted(pools, key=lambda p: (-p.quota, p.name))][:100]
        assert f"GPUs owned {sum(pool.quota for pool in pools):,}" in text
        assert (await names("?q=P24"))[0] == [f"p24{i}" for i in range(10)]
        assert "No pools match" in (await names("?q=zzz"))[1]
        for wrong in ("?page=0", "?page=x", "?sort=evil", "?x=1", f"?q={'a' * 65}"):
            assert "Invalid query" in await seen(visitor, f"/ui/{wrong}", 422)


def test_forecasts_are_compared_with_outcomes_window_by_window():
    foreseen = PoolForecast("a", [1, 2], [1, 1], [20, 4], [2, 0])
    rows = windows_of([60.0, 300.0], foreseen)
    assert [(row.window, row.missed, row.judged) for row in rows] == [(60.0, 2, 20), (300.0, 0, 4)]
    unwatched = windows_of([60.0], PoolForecast("a", [1], [1]))
    assert not any(row.judged for row in unwatched)


JUNK = (
    "", "x", "-1", "0", "1e9", "9" * 30, "null", "%00", "%ff", "%C3%28", "..", "%2e%2e%2f", "'",
    '"', "<b>", "&", "=", "{}", "%7B%7B1%7D%7D", "\u202e", "%0d%0aX:1", "a" * 3000, "p=1&p=2",
    "off", "on",
)  # fmt: skip


@story
async def test_no_page_fails_for_any_query(folder):
    rng = Random(7)
    async with door(folder) as client, browser(client) as visitor:
        form = seal_in(await seen(visitor, "/ui/"))
        routes = [route for route in client.app.router.routes() if route.method in ("GET", "POST")]
        paths = [(r.method, r.resource.canonical) for r in routes]
        ours = [(m, p) for m, p in paths if p.startswith("/ui/") and p != "/ui/events"]
        names = ["q", "sort", "page", "pool", "user", "limit", "mode", "month", "to", "token", "x"]
        for method, route in ours * 12:
            said = rng.choice((*JUNK, "vision")) or "y"
            path = route.replace("{name}", said).replace("{id}", said)
            pairs = [f"{rng.choice(names)}={rng.choice(JUNK)}" for _ in range(rng.randrange(3))]
            fields = {rng.choice(names): rng.choice(JUNK) for _ in range(rng.randrange(3))}
            data = {"form": form, **fields} if method == "POST" else None
            address = URL(f"{path}?{'&'.join(pairs)}", encoded=True)
            request = visitor.request(method, address, data=data, allow_redirects=False)
            async with request as response:
                assert response.status < 500, (method, address, await response.text())
            if path == "/ui/sign-out":
                await sent(visitor, "/ui/sign-in", token=TOKEN, to="/ui/")


AS_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@story
async def test_an_invalid_form_is_refused(folder):
    async with door(folder) as client, browser(client) as visitor:
        for body in (b"\xff\xfe", b"&".join(b"a%d=1" % i for i in range(99)), b"[1]", b""):
            async with visitor.post("/ui/settings/lending", data=body, headers=AS_FORM) as response:
                assert response.status in (403, 422)


@story
async def test_a_form_as_large_as_a_batch_of_jobs_is_not_parsed(folder):
    """It would take seconds, and who has not signed in may send one."""
    async with door(folder) as client, browser(client) as visitor:
        body = b"token=" + b"%41" * (MAX_FORM // 3)
        assert len(body) > MAX_FORM
        async with visitor.post("/ui/sign-in", data=body, headers=AS_FORM) as response:
            assert response.status == 413
        async with visitor.post("/ui/sign-in", data=body[:MAX_FORM], headers=AS_FORM) as response:
            assert response.status == 401, "it is read, and no token"


@story
async def test_a_form_is_read_only_up_to_its_limit(folder):
    """Nobody waits for what is announced, nor for the end of what has none."""
    head = "POST /ui/sign-in HTTP/1.1\r\nHost: sia\r\n"
    announced = f"{head}Content-Length: {MAX_FORM + 1}\r\n\r\n"
    endless = f"{head}Transfer-Encoding: chunked\r\n\r\n"
    async with door(folder) as client:
        assert await first_line(client, announced) == "HTTP/1.1 413 Request Entity Too Large"
        piece = f"{MAX_FORM + 1:x}\r\n{'a' * (MAX_FORM + 1)}\r\n"
        assert await first_line(client, endless + piece) == "HTTP/1.1 413 Request Entity Too Large"


async def first_line(client, said):
    """How the daemon answers to a request that never ends."""
    reader, writer = await asyncio.open_connection(client.server.host, client.server.port)
    try:
        writer.write(said.encode())
        return (await reader.readline()).decode().rstrip()
    finally:
        writer.close()
        await writer.wait_closed()


@story
async def test_a_compressed_body_is_refused(folder):
    async with door(folder) as client, browser(client, None) as visitor:
        body = gzip.compress(f"token={TOKEN}".encode())
        headers = {"Content-Encoding": "gzip"}
        for who, path in ((visitor, "/ui/sign-in"), (client, "/v1/jobs")):
            async with who.post(path, data=body, headers=headers) as response:
                assert response.status == 415
                assert "Content-Encoding" in await response.text()


@story
async def test_too_many_sign_ins_are_refused_without_reading_them(folder):
    """The announced body never comes: the answer is there all the same."""
    said = "POST /ui/sign-in HTTP/1.1\r\nHost: sia\r\nContent-Length: 9\r\n\r\n"
    with (
        patch("daemon.doors.http.authentication.WRONG_AT_ONCE", 3.0),
        patch("daemon.doors.http.authentication.WRONG_EACH", 1e-9),
    ):
        async with door(folder) as client, browser(client, None) as visitor:
            for _ in range(3):
                assert (await sent(visitor, "/ui/sign-in", token="x"))[0] == 401
            assert await first_line(client, said) == "HTTP/1.1 429 Too Many Requests"
            await asked(client, "GET", "/v1/jobs")


@story
async def test_pages_name_pools_that_lend_nothing(folder):
    async with door(folder) as client, browser(client) as visitor:
        for hours, seen in ((0.0, True), (None, False)):
            await asked(client, "PATCH", "/v1/pools/vision", {"lend_budget_hours": hours})
            async with visitor.get("/ui/") as response:
                assert ("not lending" in await response.text()) is seen
            said = (await asked(client, "GET", "/v1/status"))["kept"]
            assert said == ({"vision": ["hours"]} if seen else {})


@story
async def test_a_page_in_the_table_is_in_the_menu_of_those_who_may_see_it(folder):
    class Weather(PageSet):
        menu = ((f"{UI}/weather", "Weather"),)

        def operations(self):
            rule, page = Rule.OPERATE, self.weather
            return [Operation("GET", f"{UI}/weather", rule, page, "Sun.", {200: HTML})]

        async def weather(self, request):
            return await self._pages.page(request, "base.html")

    with patch("daemon.doors.web.pages.table.PAGES", (*PAGES, Weather)):
        async with door(folder) as client:
            viewer = await token_of(client, role="viewer")
            async with browser(client) as operator, browser(client, viewer) as visitor:
                page = await seen(operator, "/ui/weather")
                assert '<a href="/ui/weather" aria-current="page">Weather</a>' in page
                assert ">Audit</a>" in page
                page = await seen(visitor, "/ui/")
                assert ">Settings</a>" in page
                assert ">Weather</a>" not in page
                assert ">Audit</a>" not in page
