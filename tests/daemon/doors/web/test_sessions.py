"""Sessions of browsers that are ended: one's own, another's, on every machine at once."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from daemon.engine.engine import Engine
from daemon.model.access import Role
from daemon.model.inputs import IssueToken, SignOut
from daemon.model.outputs import Accepted
from daemon.runtime.token_file import digest_of
from tests.daemon.cli.test_commands import served  # noqa: F401  a fixture
from tests.support.daemons.daemons import setup
from tests.support.daemons.doors import TOKEN, asked, door, story
from tests.support.servers.browsers import browser, seal_in, seen, sent


async def token_of(client, name, role="viewer"):
    return (await asked(client, "POST", "/v1/tokens", {"name": name, "role": role}, status=201))[
        "token"
    ]


async def ended(client):
    """Who ended whose sessions, as the audit has it."""
    records = [each["record"] for each in (await asked(client, "GET", "/v1/audit"))["records"]]
    return [
        (each["who"], each["target"], each["after"])
        for each in records if each["what"] == "token sign-out"
    ]  # fmt: skip


@story
async def test_signing_out_everywhere_invalidates_all_cookies(folder):
    async with door(folder) as client:
        ann, bob = await token_of(client, "ann"), await token_of(client, "bob")
        async with AsyncExitStack() as stack:
            desk, laptop, other = [
                await stack.enter_async_context(browser(client, each)) for each in (ann, ann, bob)
            ]
            copied = dict(laptop.session.cookie_jar.filter_cookies(laptop.make_url("/ui/")))
            form = seal_in(await seen(desk, "/ui/settings"))
            there = await sent(desk, "/ui/sign-out-everywhere", form=form)
            assert there == (303, "/ui/sign-in")
            for each in (desk, laptop):
                await seen(each, "/ui/", 401)
            assert copied
            assert "session has ended" in await seen(laptop, "/ui/", 401)
            await seen(other, "/ui/")
            assert (await sent(desk, "/ui/sign-in", token=ann, to="/ui/"))[0] == 303
            await seen(desk, "/ui/")
            await seen(laptop, "/ui/", 401)
        assert await ended(client) == [("ann", "ann", {"signed_out": 1})]


@story
async def test_an_operator_ends_the_sessions_of_a_token_which_stays_valid(folder):
    async with door(folder) as client, browser(client) as operator:
        ann = await token_of(client, "ann")
        async with browser(client, ann) as visitor:
            page = await seen(operator, "/ui/settings")
            path = "/ui/settings/tokens/ann/sign-out"
            assert path in page
            form = seal_in(page)
            assert await sent(operator, path, form=form) == (303, "/ui/settings")
            await seen(visitor, "/ui/", 401)
        await asked(client, "GET", "/v1/jobs", headers={"Authorization": f"Bearer {ann}"})
        gone = "/ui/settings/tokens/nobody/sign-out"
        assert (await sent(operator, gone, form=form))[0] == 404


@story
async def test_sessions_of_the_local_token_can_be_ended_permanently(folder):
    async with door(folder) as client, browser(client) as visitor:
        cookies = visitor.session.cookie_jar.filter_cookies(visitor.make_url("/ui/"))
        kept = {name: morsel.value for name, morsel in cookies.items()}
        await asked(client, "DELETE", "/v1/tokens/operator/sessions", status=204)
        await seen(visitor, "/ui/", 401)
    async with door(folder) as client, browser(client, None) as visitor:  # started again
        visitor.session.cookie_jar.update_cookies(kept, visitor.make_url("/ui/"))
        assert "session has ended" in await seen(visitor, "/ui/", 401)
        assert (await sent(visitor, "/ui/sign-in", token=TOKEN, to="/ui/"))[0] == 303
        await seen(visitor, "/ui/")


@story
async def test_event_streams_end_when_the_sessions_of_their_token_end(folder):
    async with door(folder) as client, browser(client, await token_of(client, "ann")) as visitor:
        headers = {"Accept": "text/event-stream"}
        async with visitor.get("/ui/events", headers=headers) as stream:
            assert b"resume" in await stream.content.readline()
            await asked(client, "DELETE", "/v1/tokens/ann/sessions", status=204)
            rest = await asyncio.wait_for(stream.content.read(), 60)
        assert b"token_signed_out" not in rest


@story
async def test_a_viewer_cannot_end_the_sessions_of_others(folder):
    async with door(folder) as client, browser(client, await token_of(client, "ann")) as visitor:
        page = await seen(visitor, "/ui/settings")
        assert "/ui/settings/tokens/" not in page
        path = "/ui/settings/tokens/operator/sign-out"
        assert (await sent(visitor, path, form=seal_in(page)))[0] == 403
        await seen(visitor, "/ui/")


@story
async def test_a_viewer_cannot_fill_the_audit_log_by_signing_out(folder):
    async with door(folder) as client:
        ann = {"Authorization": f"Bearer {await token_of(client, 'ann')}"}
        bob = {"Authorization": f"Bearer {await token_of(client, 'bob')}"}
        said = []
        for _ in range(30):
            async with client.delete("/v1/sessions", headers=ann) as response:
                said.append(response.status)
        assert said[:5] == [204] * 5
        assert set(said[5:]) <= {204, 429}
        assert said.count(429) > 20
        async with client.delete("/v1/sessions", headers=ann) as response:
            assert 0 < int(response.headers["Retry-After"]) <= 20
        await asked(client, "DELETE", "/v1/sessions", status=204, headers=bob)
        assert len(await ended(client)) == said.count(204) + 1
        async with browser(client, TOKEN) as operator:
            form = seal_in(await seen(operator, "/ui/settings"))
            path = "/ui/settings/tokens/ann/sign-out"
            for _ in range(8):
                assert (await sent(operator, path, form=form))[0] == 303


@pytest.mark.parametrize("name", ["ann", "operator"])
def test_snapshots_contain_the_number_of_sign_outs_and_old_ones_none(name):
    old = json.loads(Engine.new(setup(a=4)).dump())
    del old["book"]["signed_out"]
    engine = Engine.restore(json.dumps(old).encode())
    assert engine.book.signed_out == 0
    issue = IssueToken("ann", Role.VIEWER, digest_of("x"))
    engine.step(1.0, (issue, SignOut(name, "operator")))
    again = Engine.restore(engine.dump())
    assert again.dump() == engine.dump()
    (answer,) = again.step(2.0, (SignOut(name, "operator"),)).answers
    assert answer == Accepted()
    assert max(again.book.signed_out, again.book.token("ann").signed_out) == 2


def test_signing_out_on_the_command_line(served):  # noqa: F811
    own = served("token", "sign-out")
    assert (own.returncode, own.stdout) == (0, "all sessions ended; the token stays valid\n")
    nobody = served("token", "sign-out", "nobody")
    assert nobody.returncode == 1
    assert "there is no token 'nobody'" in nobody.stderr
