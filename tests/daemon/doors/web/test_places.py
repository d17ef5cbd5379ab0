"""Pages of nodes and cells, and of loans: numbers are the API's, others' jobs are not there."""

import re

import pytest

from daemon.config.config import NodeConfig
from daemon.doors.web.pages.loans import month_beside
from tests.daemon.doors.web.test_jobs import rows_in, send, token_of
from tests.daemon.engine.test_cells import POOLS
from tests.support.clusters.cells import spec
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.servers.browsers import browser, parsed, seen, when

NODES = tuple(NodeConfig(f"n{i}", 4) for i in range(3))


@pytest.fixture(autouse=True)
def booked_at_once(monkeypatch):
    """What is booked a minute later at the latest is there with the next step."""
    monkeypatch.setattr("daemon.process.build.BOOK_EVERY", 1)


@story
async def test_nodes_are_shown_as_in_the_api(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client, browser(client) as visitor:
        await send(client, "a", gpus=2)
        await job_in(client, "a", "running")
        await asked(client, "POST", "/v1/nodes/n2/drain", {"why": "<b>fan</b>"})
        window = {"node": "n0", "start": 5e9, "end": 6e9, "why": "disk", "id": "m1"}
        await asked(client, "POST", "/v1/maintenance", window, status=201)
        page = await seen(visitor, "/ui/nodes")
        rows, text = rows_in(page), parsed(page)[1]
        for node in (await asked(client, "GET", "/v1/nodes"))["nodes"]:
            state = "out : operator , <b>fan</b>" if node["out"] else "in service"
            said = f"{node['name']} {node['gpus']} {node['used']} {state} {' '.join(node['jobs'])}"
            assert [row for row in rows if row.startswith(said.strip())], rows
        assert "<b>" not in page
        assert "GPUs 12 in use 2 free 6 out 4" in text
        assert "4 1 3 4" in rows  # one node of three with 4 free
        assert "2 1 3 2" in rows
        assert when(5e9) in page
        for state, names in (("out", ["n2"]), ("free", ["n0", "n1"]), ("full", [])):
            html = await seen(visitor, f"/ui/nodes?state={state}&q=N")
            table = html.split('id="node-table"')[1].split("</table>")[0]
            assert re.findall("<bdi>(n[0-9])<", table) == names
        assert "No nodes match" in await seen(visitor, "/ui/nodes?q=x")


@story
async def test_cells_are_shown_as_in_the_api(folder):
    quotas = {"vision": {"node": 3}, "speech": {"node": 1}}
    async with (
        door(folder, pools=POOLS, cells=spec(quotas=quotas), speed=1.0) as client,
        browser(client) as visitor,
    ):
        await send(client, "a", gpus=2)
        await job_in(client, "a", "running")
        rows = rows_in(await seen(visitor, "/ui/nodes"))
        (chain,) = (await asked(client, "GET", "/v1/cells"))["chains"]
        for level in chain["levels"]:
            gpus = level["gpus"] * level["free"]
            said = f"{level['type']} {level['gpus']} {level['free']} {level['cells']} {gpus}"
            assert said in rows


async def lent(client):
    """A job of speech on GPUs of vision, and one that did so before."""
    for job_id in ("before", "now"):
        job = {"pool": "speech", "gpus": 3, "duration": 1e6, "time_limit": 60, "id": job_id}
        await asked(client, "POST", "/v1/jobs", job, status=201)
        await asked(client, "POST", "/v1/jobs", {**job, "id": f"{job_id}-too"}, status=201)
        await job_in(client, f"{job_id}-too", "running")
        if job_id == "before":
            for each in ("before-too", "before"):
                await asked(client, "DELETE", f"/v1/jobs/{each}", status=202)
                await job_in(client, each, "cancelled")


@story
async def test_loans_are_shown_as_in_the_api(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await lent(client)
        loans = await asked(client, "GET", "/v1/loans")
        rows = rows_in(await seen(visitor, "/ui/loans"))
        assert loans["loans"]
        for loan in loans["loans"]:
            said = f"{loan['donor']} {loan['borrower']} {loan['job']} {loan['gpus']} "
            assert any(row.startswith(said) for row in rows)
        for pool in ("vision", "speech"):
            gave, took = (loans[key].get(pool, 0) for key in ("lent", "borrowed"))
            assert f"{pool} {gave} {took} ledger · statement" in rows
        ledger = await asked(client, "GET", "/v1/pools/vision/ledger")
        page = await seen(visitor, "/ui/pools/vision/ledger")
        booked = rows_in(page)
        assert ledger["loans"]
        assert ledger["open"]
        for loan in (*ledger["open"], *ledger["loans"]):
            said = f"{loan['lender']} {loan['borrower']} {loan['job']} {loan['gpus']} "
            assert any(row.startswith(said) for row in booked)
            assert when(loan["start"]) in page
        number = ledger["loans"][-1]["number"]
        assert "No closed loans yet" in await seen(
            visitor, f"/ui/pools/vision/ledger?before={number}"
        )
        await seen(visitor, "/ui/pools/none/ledger", 404)
        await seen(visitor, "/ui/pools/vision/ledger?before=x", 422)


@story
async def test_a_statement_has_the_sums_of_the_api(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await lent(client)
        said = await asked(client, "GET", "/v1/pools/speech/statement")
        page = await seen(visitor, "/ui/pools/speech/statement")
        text = parsed(page)[1]
        assert f"Statement {said['month']}, " in text
        assert f"Jobs {said['totals']['jobs']} " in text
        assert said["verdicts"]
        for row in said["verdicts"]:
            assert any(each.startswith(f"{row['job']} {row['gpus']} ") for each in rows_in(page))
        for note in said["notes"]:
            assert note in text
        assert f"month={month_beside(said['month'], -1)}" in page
        old = parsed(await seen(visitor, "/ui/pools/speech/statement?month=2020-01"))[1]
        assert "No loans this month" in old
        await seen(visitor, "/ui/pools/speech/statement?month=2020-13", 422)


def test_months_continue_over_the_end_of_the_year():
    assert [month_beside("2026-12", 1), month_beside("2026-01", -1)] == ["2027-01", "2025-12"]
    assert [month_beside("2026-05", 1), month_beside("2026-05", -1)] == ["2026-06", "2026-04"]


@story
async def test_jobs_of_invisible_pools_have_no_name(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client:
        await lent(client)
        await send(client, "mine", gpus=1)
        token = await token_of(client, role="viewer", pools=["vision"])
        async with browser(client, token) as visitor:
            for path in ("/ui/nodes", "/ui/loans", "/ui/pools/vision/ledger",
                         "/ui/pools/vision/statement"):  # fmt: skip
                page = await seen(visitor, path)
                assert "now" not in re.findall(r'href="/ui/jobs/([^"]*)"', page)
                assert "before" not in str(re.findall(r'href="/ui/jobs/([^"]*)"', page))
                assert "-too" not in page
            assert "another pool&#39;s" in page or "another pool's" in page
            loans = await seen(visitor, "/ui/loans")
            assert "/ui/pools/speech/ledger" not in loans
            assert "/ui/pools/vision/ledger" in loans
            for pool, seen_whole in (("vision", True), ("speech", False)):
                page = await seen(visitor, f"/ui/pools/{pool}")
                assert f"/ui/queue?pool={pool}" in page
                assert (f"/ui/pools/{pool}/statement" in page) is seen_whole
            assert "mine" in await seen(visitor, "/ui/nodes")
            for what in ("ledger", "statement"):
                assert "may not read" in await seen(visitor, f"/ui/pools/speech/{what}", 403)


@story
async def test_the_page_says_if_no_nodes_are_known(folder):
    async with door(folder) as client, browser(client) as visitor:
        text = parsed(await seen(visitor, "/ui/nodes"))[1]
        assert "No nodes are configured" in text
        assert "Name contains" not in text
