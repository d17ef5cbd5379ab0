"""The audit: one record for each change, by whom, before and after; tampering shows."""

import asyncio
import json
import sqlite3
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.config.config import NodeConfig, PoolConfig
from daemon.doors.mqtt.executor import CommandHandler
from daemon.doors.mqtt.requests import Message, read
from daemon.doors.mqtt.topics import Topics
from daemon.journal.audit import GENESIS, AuditHead, AuditRecord, Verifier, canonical, digest
from daemon.journal.journal import Journal
from daemon.journal.rows import AuditRow
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Drain, Lending
from tests.daemon.cli.test_commands import CONFIG, Served
from tests.daemon.doors.http.test_access import clients
from tests.support.daemons.daemons import FakeBackend, serving, setup, submit, until
from tests.support.daemons.doors import POOLS, TOKEN, asked, door, story

pytestmark = pytest.mark.usefixtures("leaves_nothing")

NODES = (NodeConfig("n1", 12),)


def found(rows, head=""):
    verifier = Verifier()
    verifier.look(rows, head)
    return verifier.finding(head)


def chain(texts):
    trail = AuditHead()
    return trail.rows(5.0, [AuditRecord(0, 0.0, "ann", "cancel", note=text) for text in texts])


TEXTS = st.lists(st.text(max_size=5), min_size=1, max_size=8)


@given(TEXTS, st.data())
def test_any_tampering_is_detected(texts, data):
    rows = chain(texts)
    assert found(rows) == (AuditHead(len(rows), rows[-1].digest), "", ())
    place = data.draw(st.integers(0, len(rows) - 1))
    how = data.draw(st.sampled_from(["body", "digest", "number", "remove", "insert", "swap"]))
    bad, row = [*rows], rows[place]
    if how == "body":
        at = data.draw(st.integers(0, len(row.body)))
        text = data.draw(st.text(min_size=1, max_size=2))
        bad[place] = row._replace(body=row.body[:at] + text + row.body[at:])
    elif how == "digest":
        bad[place] = row._replace(digest=digest(row.digest, ""))
    elif how == "number":
        bad[place] = row._replace(number=row.number + data.draw(st.integers(1, 9)))
    elif how == "remove":
        del bad[place]
    elif how == "insert":
        bad.insert(place, data.draw(st.sampled_from(chain(["x", *texts]))))
    else:
        other = data.draw(st.integers(0, len(rows) - 1))
        bad[place], bad[other] = bad[other], bad[place]
    same = bad == rows
    cut = how == "remove" and place == len(rows) - 1
    assert (found(bad).wrong == "") is (same or cut or bad == rows[: len(bad)])
    assert (found(bad, rows[-1].digest).wrong == "") is same


@given(TEXTS)
def test_a_stored_head_exposes_a_rewritten_audit_log(texts):
    rows = chain(texts)
    forged = chain([*texts[:-1], texts[-1] + "!"])
    assert found(forged).wrong == ""
    assert "no record has the digest" in found(forged, rows[-1].digest).wrong
    longer = AuditHead().after(rows).rows(6.0, [AuditRecord(0, 0.0, "bob", "hold")])
    assert found([*rows, *longer], rows[-1].digest).wrong == ""


def test_an_audit_record_has_exactly_one_serialization():
    record = AuditRecord(0, 0.0, "ann", "drain", before={"b": 1, "a": {"z": 1, "y": 2}})
    text = canonical(record, 7, 1.5)
    assert text == (
        '{"before":{"a":{"y":2,"z":1},"b":1},"number":7,"time":1.5,"what":"drain","who":"ann"}'
    )
    assert found([AuditRow(1, text, digest(GENESIS, text))]).wrong != ""


async def records_of(client):
    page = await asked(client, "GET", "/v1/audit?limit=1000")
    rows = [each["record"] for each in page["records"]]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    return rows


def changes(rows):
    return [(row["who"], row["what"], row.get("target", "")) for row in rows]


@story
async def test_each_change_is_recorded_with_its_values_before_and_after(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client:
        job = {"id": "a", "pool": "vision", "gpus": 2, "duration": 1e6, "hold": True}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(client, "POST", "/v1/jobs", job)  # known: no change
        await asked(client, "POST", "/v1/jobs", {**job, "gpus": 3}, status=409)
        await asked(client, "PATCH", "/v1/jobs/a", {"priority": 3})
        await asked(client, "PATCH", "/v1/jobs/a", {"priority": 3})  # as it is
        await asked(client, "POST", "/v1/jobs/a/release")
        await asked(client, "DELETE", "/v1/jobs/a", status=202)
        await asked(client, "PATCH", "/v1/pools/vision", {"quota": 7, "state": "hold"})
        await asked(client, "POST", "/v1/nodes/n1/drain", {"why": "fan"})
        await asked(client, "POST", "/v1/nodes/n1/resume")
        await asked(client, "PUT", "/v1/lending", {"on": False})
        window = {"id": "m", "node": "n1", "start": 5e9, "end": 6e9, "why": "disk"}
        await asked(client, "POST", "/v1/maintenance", window, status=201)
        await asked(client, "DELETE", "/v1/maintenance/m", status=204)
        await asked(client, "PUT", "/v1/log-level", {"level": "warning"})
        rows = await records_of(client)
        assert {row["origin"] for row in rows} == {"127.0.0.1"}
        assert changes(rows) == [
            ("operator", "submit", ""),
            ("operator", "priority", "a"),
            ("operator", "release", "a"),
            ("operator", "cancel", "a"),
            ("operator", "pool set", "vision"),
            ("operator", "drain", "n1"),
            ("operator", "resume", "n1"),
            ("operator", "lending", ""),
            ("operator", "maintenance add", "m"),
            ("operator", "maintenance cancel", "m"),
            ("operator", "log level", "warning"),
        ]
        assert rows[0]["jobs"] == [["a", "vision", 2, 1]]
        told = [(row.get("before", {}), row.get("after", {})) for row in rows]
        assert told[1] == ({"priority": 0}, {"priority": 3})
        assert told[2] == ({"phase": "held"}, {"phase": "pending"})
        assert told[4] == (
            {"quota": 8, "state": "open", "version": 1},
            {"quota": 7, "state": "hold", "version": 2},
        )
        assert told[5] == ({"out": {}}, {"out": {"operator": "fan"}})
        assert told[7] == ({"on": True}, {"on": False})
        assert told[8] == ({}, {"node": "n1", "start": 5e9, "end": 6e9, "why": "disk"})


@story
async def test_denied_attempts_are_recorded(folder):
    async with clients(folder) as (client, made):
        job = {"id": "hidden", "pool": "other", "gpus": 1, "duration": 1e6}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        who = made["submitter of own"]
        await asked(who, "PUT", "/v1/lending", {"on": False}, status=403)
        await asked(who, "POST", "/v1/jobs", {**job, "id": "mine"}, status=403)
        await asked(who, "DELETE", "/v1/jobs/hidden", status=404)
        await asked(who, "DELETE", "/v1/jobs/nowhere", status=404)
        await asked(made["admin of own"], "PATCH", "/v1/pools/own", {"quota": 9}, status=403)
        await asked(who, "GET", "/v1/tokens", status=403)  # looks are no changes
        rows = await records_of(client)
        denied = [row for row in rows if row.get("status", 200) >= 400]
        assert [(row["who"], row["what"], row["target"], row["status"]) for row in denied] == [
            ("of-a-submitter-of-own", "PUT", "/v1/lending", 403),
            ("of-a-submitter-of-own", "POST", "/v1/jobs mine", 403),
            ("of-a-submitter-of-own", "DELETE", "/v1/jobs/hidden", 404),
            ("of-a-admin-of-own", "PATCH", "/v1/pools/own", 403),
        ]
        issued = [row for row in rows if row["what"] == "token create"]
        assert issued[2]["after"] == {"role": "submitter", "pools": ["own"]}


@story
async def test_a_flood_of_denied_attempts_is_counted_instead_of_recorded(folder):
    async with clients(folder) as (client, made):
        who = made["viewer"]
        for _ in range(150):
            await asked(who, "PUT", "/v1/lending", {"on": False}, status=403)
        denied = [row for row in await records_of(client) if row["what"] == "PUT"]
        assert 100 <= len(denied) < 150


@story
async def test_a_batch_is_one_record_without_its_refused_jobs(folder):
    async with door(folder, speed=1.0) as client:
        jobs = [{"id": f"b{i}", "pool": "vision", "gpus": 1, "duration": 1e6} for i in range(3)]
        jobs += [{"id": "x", "pool": "nobody", "gpus": 1}]
        jobs += [{"id": "arr", "pool": "speech", "gpus": 1, "duration": 1e6, "array": 4}]
        await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        (row,) = await records_of(client)
        assert row["jobs"] == [
            ["b0", "vision", 1, 1],
            ["b1", "vision", 1, 1],
            ["b2", "vision", 1, 1],
            ["arr", "speech", 1, 4],
        ]


@story
async def test_large_batches_make_small_records_and_pages(folder):
    async with door(folder, speed=1.0) as client:
        job = {"pool": "vision", "gpus": 1, "duration": 1e6}
        jobs = [{"id": f"{i}-{'x' * 50}", **job} for i in range(1050)]
        await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        rows, after, pages = [], 0, 0
        with (
            patch("daemon.journal.side_tables.AUDIT_PAGE", 20_000),
            patch("daemon.journal.side_tables.AUDIT_AT_ONCE", 2),
        ):
            while page := (await asked(client, "GET", f"/v1/audit?after={after}"))["records"]:
                assert len(str(page)) < 50_000
                rows, after, pages = [*rows, *page], page[-1]["number"], pages + 1
        named = [each["record"]["jobs"] for each in rows]
        assert pages == 3
        assert [len(some) for some in named] == [100] * 10 + [50]
        assert [each[0] for some in named for each in some] == [each["id"] for each in jobs]


@story
async def test_pools_that_submit_over_mqtt_together_have_a_record_each(folder):
    async with serving(folder / "db", setup(own=4, other=4), FakeBackend()) as service:
        letters = [
            read(Message("", b'{"id":"%b","gpus":1}' % job), Topics("main"), pool, "submit")
            for job, pool in ((b"ja", "own"), (b"jb", "other"), (b"jc", "own"))
        ]
        await CommandHandler(service).answers(letters)
        rows = [json.loads(row.body) for row in await service.audit(0, 10)]
        assert [(row["who"], [job[0] for job in row["jobs"]]) for row in rows] == [
            ("mqtt:own", ["ja", "jc"]),
            ("mqtt:other", ["jb"]),
        ]


@story
async def test_a_partly_denied_batch_is_recorded_as_a_denied_attempt(folder):
    async with clients(folder) as (client, made):
        jobs = [{"id": f"j{i}", "pool": "other", "gpus": 1} for i in range(2)]
        jobs += [{"id": "arr", "pool": "other", "gpus": 1, "array": 3}]
        jobs += [{"id": "mine", "pool": "own", "gpus": 1}]
        await asked(made["submitter of own"], "POST", "/v1/jobs", {"jobs": jobs})
        taken, denied = (await records_of(client))[-2:]
        assert [job[0] for job in taken["jobs"]] == ["mine"]
        assert (denied["target"], denied["status"]) == ("/v1/jobs j0", 403)
        assert denied["note"] == "5 jobs"


@story
async def test_denied_attempts_that_could_not_be_written_are_all_counted(folder):
    async def fails(*_):
        raise UnavailableError(503, "the disk is full", 1.0)

    async with clients(folder) as (client, made):
        submit, client.service.submit = client.service.submit, fails
        for _ in range(3):
            await asked(made["viewer"], "PUT", "/v1/lending", {"on": False}, status=403)
        client.service.submit = submit
        await asked(made["viewer"], "PUT", "/v1/lending", {"on": False}, status=403)
        assert (await records_of(client))[-1]["note"] == "and 3 more before"


@story
async def test_the_audit_chain_continues_over_restarts_and_records_configuration_changes(folder):
    async with door(folder) as client:
        await asked(client, "PUT", "/v1/lending", {"on": False})
    pools = (PoolConfig("vision", 9), POOLS[1])
    async with door(folder, pools=pools) as client:
        await asked(client, "PUT", "/v1/lending", {"on": True})
        rows = await records_of(client)
        assert [row["what"] for row in rows] == ["lending", "configure", "lending"]
        assert (rows[1]["who"], rows[1]["after"]) == ("configuration", {"pool vision quota": 9})
        page = await asked(client, "GET", "/v1/audit?after=1&limit=1")
        assert (page["next"], page["newest"], len(page["records"])) == (2, 3, 1)


@story
async def test_the_audit_log_contains_no_secrets(folder):
    async with door(folder, speed=1.0) as client:
        job = {"id": "a", "pool": "vision", "gpus": 1, "duration": 1e6,
               "env": {"PASSWORD": "hush-hush"}, "command": ["run", "--key=hush-hush"]}  # fmt: skip
        await asked(client, "POST", "/v1/jobs", job, status=201)
        made = await asked(
            client, "POST", "/v1/tokens", {"name": "x", "role": "viewer"}, status=201
        )
        await asked(client, "DELETE", "/v1/jobs/a", status=202)
        text = json.dumps(await records_of(client))
        for secret in ("hush-hush", TOKEN, made["token"], made["token"][-20:]):
            assert secret not in text


def test_the_command_line_shows_and_verifies_the_audit_log(tmp_path):
    served = Served(tmp_path)
    assert served("lending", "off").returncode == 0
    assert served("lending", "on").returncode == 0
    shown = served("audit", "show")
    assert shown.returncode == 0, shown.stderr
    assert "on true → false" in shown.stdout
    said = json.loads(served("audit", "show", "--json", "--limit", "1").stdout)
    assert said["records"][0]["after"] == {"on": True}
    good = served("audit", "verify")
    assert good.returncode == 0, good.stderr
    assert said["head"] in good.stdout
    head = json.loads(served("audit", "verify", "--json").stdout)["head"]
    assert served("audit", "verify", "--head", head).returncode == 0
    other = served("audit", "verify", "--head", "f" * 64)
    assert other.returncode == 1
    assert "newest records are missing" in other.stderr

    database = served.config.parent / "state" / "sia.db"
    busy = served("audit", "verify", "--database", database)
    assert busy.returncode == 2
    assert "ask that daemon" in busy.stderr
    assert served.end() == 0
    assert f'"audit_head": "{head}"' in served.log
    assert served("audit", "verify", "--database", database, "--head", head).returncode == 0
    db = sqlite3.connect(database)
    db.execute("UPDATE audit SET body = replace(body, 'false', '0') WHERE number = 1")
    db.commit()
    db.close()
    bad = served("audit", "verify", "--database", database, "--json")
    assert bad.returncode == 1
    assert "record 1" in json.loads(bad.stdout)["wrong"]
    gone = served("audit", "verify", "--database", tmp_path / "nowhere.db")
    assert gone.returncode == 2
    assert "give the path of the daemon's database" in gone.stderr


@pytest.mark.parametrize("after", ["-1", "x", "9" * 30])
def test_impossible_pages_are_refused(tmp_path, after):
    @story
    async def tell(folder):
        async with door(folder) as client:
            await asked(client, "GET", f"/v1/audit?after={after}", status=422)

    tell(tmp_path)


def test_the_audit_log_works_the_same_on_postgresql(postgres, tmp_path):
    url = postgres.database("audit")
    served = Served(tmp_path, CONFIG.replace("[daemon]", f'[daemon]\ndatabase = "{url}"'))
    assert served("lending", "off").returncode == 0
    assert served("token", "create", "ann", "--role", "viewer").returncode == 0
    head = served.said("audit", "verify")["head"]
    there = served("audit", "verify", "--database", url, "--head", head)
    assert there.returncode == 0, there.stderr
    assert "2 records, complete and unchanged" in there.stdout
    assert served.end() == 0
    postgres.run("DELETE FROM sia.audit WHERE number = 1", "audit")
    assert "record 1 is missing" in served("audit", "verify", "--database", url).stderr


def failing(service, *, durable):
    """The next commit says that it failed."""
    journal = service._writer.journal
    commit = journal.commit

    def fails(entry, part):
        journal.commit = commit
        if durable:
            commit(entry, part)
            journal.last -= 1
        raise JournalError("a sync failed")

    journal.commit = fails


@pytest.mark.parametrize("durable", [True, False])
def test_failed_commits_leave_neither_gaps_nor_duplicates(tmp_path, monkeypatch, durable):
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)

    async def tell():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            await service.submit([Lending(on=False, actor="ann")])
            failing(service, durable=durable)
            try:
                await service.submit([Lending(on=True, actor="ann")])
            except UnavailableError:
                assert not durable
            await until(lambda: service.ready)
            await service.submit([Drain("n9", "gone", "ann"), Lending(on=False, actor="ann")])
            await service.submit([replace(submit(x), actor="ann") for x in "xy"], "10.0.0.7")
            rows = await service.audit(0, 100)
            assert (rows[-1].number, rows[-1].digest) == service.trail
            return rows

    rows = asyncio.run(tell())
    assert found(rows).wrong == ""
    records = [json.loads(row.body) for row in rows]
    assert [record["what"] for record in records] == ["lending"] * (1 + 2 * durable) + ["submit"]
    assert records[-1]["origin"] == "10.0.0.7"
    journal = Journal(tmp_path / "db")
    assert journal.audit(0, 100) == rows
    journal.close()
