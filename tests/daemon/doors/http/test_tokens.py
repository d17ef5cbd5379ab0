"""Tokens: issued, shown once, known by digests, revoked, expired, and of one cluster alone."""

import json
import sqlite3

import pytest
from aiohttp.test_utils import TestClient

from daemon.config.config import PoolConfig
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal
from daemon.model.access import Role
from daemon.model.book import TokenRecord
from daemon.model.inputs import IssueToken, RevokeToken
from daemon.model.limits import MAX_TOKENS, TOKEN_REMEMBERED
from daemon.model.outputs import Accepted, Refused
from daemon.runtime.token_file import cluster_of, digest_of, new_token
from tests.daemon.cli.test_commands import Served, served  # noqa: F401  a fixture
from tests.support.daemons.daemons import setup, until
from tests.support.daemons.doors import POOLS, TOKEN, asked, door, story


def issue(name, role=Role.VIEWER, pools=(), expires=None, digest=None):
    return IssueToken(name, role, digest or digest_of(name), tuple(pools), expires, "operator")


def stepped(engine, now, *inputs):
    return engine.step(now, inputs).answers


def test_names_are_unique_until_they_expire_or_are_revoked():
    engine = Engine.new(setup(a=4))
    assert stepped(engine, 1.0, issue("x", expires=10.0)) == [Accepted()]
    (again,) = stepped(engine, 2.0, issue("x", digest="other"))
    assert (again.status, again.title) == (409, "name is taken")
    assert stepped(engine, 10.0, issue("x", digest="other")) == [Accepted()]
    assert [*engine.book.tokens] == ["other"]
    revoked, gone = stepped(engine, 11.0, RevokeToken("x"), RevokeToken("x"))
    assert revoked == Accepted()
    assert gone.status == 404
    assert engine.book.tokens == {}


@pytest.mark.parametrize(
    ("asked_for", "status", "words"),
    [
        (issue("x", Role.SUBMITTER), 422, "needs at least one pool"),
        (issue("x", Role.ADMIN), 422, "needs at least one pool"),
        (issue("x", Role.OPERATOR, ["a"]), 422, "is for all pools"),
        (issue("x", Role.VIEWER, ["b"]), 422, "no pool 'b'"),
        (issue("x", expires=5.0), 422, "before it is issued"),
        (issue("operator"), 409, "already"),
        (issue("configuration"), 409, "already"),
        (issue("y", digest=digest_of("known")), 409, "already"),
    ],
)
def test_an_invalid_token_request_is_refused_and_changes_nothing(asked_for, status, words):
    engine = Engine.new(setup(a=4))
    stepped(engine, 1.0, issue("known"))
    before = engine.book.tokens.copy()
    (said,) = stepped(engine, 5.0, asked_for)
    assert isinstance(said, Refused)
    assert (said.status, words in said.detail, bool(said.mend)) == (status, True, True)
    assert engine.book.tokens == before


def test_the_number_of_tokens_is_limited_and_expired_ones_make_room():
    engine = Engine.new(setup(a=4))
    stepped(engine, 1.0, *(issue(f"x{i}", expires=10.0) for i in range(MAX_TOKENS)))
    (full,) = stepped(engine, 20.0, issue("y"))
    assert (full.status, full.title) == (409, "too many tokens")
    assert stepped(engine, 10.0 + TOKEN_REMEMBERED, issue("y")) == [Accepted()]
    assert len(engine.book.tokens) == 1


def test_tokens_are_part_of_snapshots_and_old_snapshots_have_none():
    engine = Engine.new(setup(a=4))
    old = json.loads(engine.dump())
    del old["book"]["tokens"]
    assert Engine.restore(json.dumps(old).encode()).book.tokens == {}
    stepped(engine, 1.0, issue("x", Role.ADMIN, ["a"], 10.0))
    again = Engine.restore(engine.dump())
    assert again.book.tokens == {
        digest_of("x"): TokenRecord(
            "x", Role.ADMIN, digest_of("x"), 1.0, ("a",), 10.0, "operator"
        )
    }  # fmt: skip
    assert again.dump() == engine.dump()


def test_a_token_contains_its_cluster_and_nothing_else():
    tokens = {new_token("west.example-1") for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert cluster_of(token) == "west.example-1"
        assert len(token.rpartition("west.example-1_")[2]) == 43  # 256 bits in base64
    assert cluster_of("a-token-that-nobody-guesses") is None
    assert cluster_of("sia_x") is None


@story
async def test_a_token_under_another_scheme_is_not_called_expired(folder):
    async with door(folder) as client:
        body = {"name": "x", "role": "viewer"}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        for right in (token, TOKEN):
            headers = {"Authorization": f"Token {right}"}
            said = await asked(client, "GET", "/v1/jobs", status=401, headers=headers)
            assert said["detail"] == "the Authorization header is not of type Bearer"
            assert "Authorization: Bearer" in said["mend"]


async def said_to(client, token):
    stranger = TestClient(client.server, headers={"Authorization": f"Bearer {token}"})
    said = await asked(stranger, "GET", "/v1/jobs", status=401)
    await stranger.session.close()
    return said["detail"]


@story
async def test_a_refused_request_states_the_reason(folder):
    async with door(folder, cluster="west", speed=1.0) as client:
        made = await asked(
            client,
            "POST",
            "/v1/tokens",
            {"name": "x", "role": "viewer", "lasts": 0.5},
            status=201,
        )
        assert made["token"].startswith("sia_west_")
        await until(lambda: client.service.clock.now() > made["expires"])
        assert await said_to(client, made["token"]) == "the token x has expired"
        other = new_token("east")
        assert await said_to(client, other) == (
            "the token is for cluster 'east'; this is cluster 'west'"
        )
        assert "revoked" in await said_to(client, new_token("west"))
        (shown,) = (await asked(client, "GET", "/v1/tokens"))["tokens"]
        assert (shown["name"], shown["expired"]) == ("x", True)


@story
async def test_a_token_survives_a_restart_and_is_stored_only_as_a_hash(folder):
    async with door(folder) as client:
        made = await asked(
            client, "POST", "/v1/tokens", {"name": "x", "role": "viewer"}, status=201
        )
        token = made["token"]
    pools = (*POOLS, PoolConfig("more", 1))
    async with door(folder, pools=pools) as client:  # configured anew meanwhile
        reader = TestClient(client.server, headers={"Authorization": f"Bearer {token}"})
        await asked(reader, "GET", "/v1/jobs")
        assert token not in str(await asked(client, "GET", "/v1/tokens"))
        await reader.session.close()
    db = sqlite3.connect(folder / "sia.db")
    dump = "\n".join(db.iterdump())
    db.close()
    assert digest_of(token) in dump
    for file in folder.iterdir():
        assert token.encode() not in file.read_bytes()
        assert TOKEN.encode() not in file.read_bytes()


@story
async def test_a_request_for_a_token_is_checked(folder):
    async with door(folder) as client:
        for body in (
            {"name": "x"},
            {"name": "../x", "role": "viewer"},
            {"name": "x", "role": "king"},
            {"name": "x", "role": "viewer", "lasts": -1},
            {"name": "x", "role": "submitter"},
            {"name": "x", "role": "viewer", "token": "mine"},
        ):
            await asked(client, "POST", "/v1/tokens", body, status=422)
        said = await asked(client, "DELETE", "/v1/tokens/operator", status=409)
        assert "token_file" in said["detail"]
        await asked(client, "DELETE", "/v1/tokens/nobody", status=404)


def test_journals_without_tokens_are_read(tmp_path):
    """Inputs as a daemon wrote them that knew no tokens."""
    engine = Engine.new(setup(a=4))
    text = '[{"type":"Cancel","job":"x","actor":"token"},{"type":"Lending","on":false}]'
    journal = Journal(tmp_path / "sia.db")
    inputs = journal._inputs(1, text)
    journal.close()
    assert [type(each).__name__ for each in inputs] == ["Cancel", "Lending"]
    assert stepped(engine, 1.0, *inputs)[1] == Accepted()


def test_tokens_on_the_command_line(served, monkeypatch):  # noqa: F811
    made = served("token", "create", "ann", "--role", "submitter", "--pool", "vision",
                  "--expires", "30d")  # fmt: skip
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert token.startswith("sia_main_")
    assert "submitter of vision until" in made.stderr
    listed = served("token", "list")
    assert "ann" in listed.stdout
    assert token not in listed.stdout
    (shown,) = json.loads(served("token", "list", "--json").stdout)["tokens"]
    assert (shown["role"], shown["pools"]) == ("submitter", ["vision"])
    monkeypatch.setenv("SIA_TOKEN", token)
    assert (
        served("submit", "--pool", "vision", "--duration", "1h", "--id", "of-ann").returncode == 0
    )
    denied = served("submit", "--pool", "speech", "--duration", "1h")
    assert denied.returncode == 1
    assert "submit and manage jobs in pool 'speech'" in denied.stderr
    assert served("lending", "off").returncode == 1
    monkeypatch.setenv("SIA_TOKEN", "short")
    assert "SIA_TOKEN: contains no token" in served("jobs").stderr
    monkeypatch.delenv("SIA_TOKEN")
    assert served("token", "revoke", "ann").returncode == 0
    monkeypatch.setenv("SIA_TOKEN", token)
    refused = served("jobs")
    assert refused.returncode == 1
    assert "revoked" in refused.stderr
    monkeypatch.delenv("SIA_TOKEN")
    assert served("token", "create", "bob", "--role", "admin").returncode == 2
    made = served("token", "create", "lasting", "--role", "viewer")
    assert (
        made.stderr == "lasting: viewer, until it is revoked; store it now, it is not shown again\n"
    )
    assert isinstance(served, Served)
