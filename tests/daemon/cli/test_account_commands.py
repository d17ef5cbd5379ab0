"""`sia account`, `sia ledger`, `sia statement`, as an owner has them, and whoever may not."""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import pytest
from click.testing import CliRunner

from daemon.cli.accounts import account, ledger, statement
from daemon.config.config import PoolConfig
from daemon.lending.accounts import BOOK_EVERY
from daemon.model.inputs import SetPriority
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import TOKEN, asked, door, job_in, story

HOSTILE = "<b>speech</b>\x1b[2J"
"""A pool that somebody named so in their configuration."""

POOLS = (PoolConfig("vision", 8), PoolConfig(HOSTILE, 4), PoolConfig("empty", 2))


@asynccontextmanager
async def lent(folder):
    """A daemon in which one pool has lent 4 GPUs to another one's job, and what asks it."""
    async with door(folder, pools=POOLS, speed=100.0) as client:
        for job_id in "ab":
            each = {"id": job_id, "pool": HOSTILE, "gpus": 4, "duration": 20, "run_time": 20}
            await asked(client, "POST", "/v1/jobs", each, status=201)
        for job_id in "ab":
            await job_in(client, job_id, "finished")
        await until(lambda: client.service.engine.settle_accounts() or known(client) == 2)
        for _ in range(BOOK_EVERY):  # refused, but each a step: rows are booked
            await client.service.submit([SetPriority("b", 1)])

        async def said(command, *arguments, code=0, token=TOKEN):
            env = {"SIA_URL": str(client.make_url("/")), "SIA_TOKEN": token}
            done = await asyncio.to_thread(
                CliRunner().invoke, command, list(map(str, arguments)), env={**os.environ, **env}
            )
            assert done.exit_code == code, done.output
            assert "Traceback" not in done.output
            return done.output

        yield client, said


def known(client):
    account_of = client.service.book.accounts.get(HOSTILE)
    return account_of.jobs if account_of else 0


@story
async def test_an_account_is_printed_in_words_and_as_json(folder):
    async with lent(folder) as (_, said):
        text = await said(account, HOSTILE)
        assert "compared          2 jobs\n" in text
        assert "slowed            0 jobs (0.000 %), 0.00 h\n" in text
        assert "\x1b" not in text
        found = json.loads(await said(account, HOSTILE, "--json"))
        assert (found["jobs"], found["slowed"], found["forgotten"]) == (2, 0, 0)
        assert found["borrowed_gpu_hours"] > 0
        lender = json.loads(await said(account, "vision", "--json"))
        assert lender["lent_gpu_hours"] == found["borrowed_gpu_hours"]


@story
async def test_jobs_that_are_late_now_are_shown_before_they_are_in_the_sums(folder):
    async with lent(folder) as (client, said):
        assert "late now          0 jobs\n" in await said(account, "vision")
        for job_id, pool, gpus in (
            ("own", HOSTILE, 4),
            ("guest", HOSTILE, 4),
            ("due", "vision", 8),
        ):
            each = {"id": job_id, "pool": pool, "gpus": gpus, "duration": 1e6, "run_time": 20}
            await asked(client, "POST", "/v1/jobs", each, status=201)
        words = "late now          1 job past their virtual start (1 pending, 0 running)\n"
        while words not in await said(account, "vision"):
            await client.service.submit([SetPriority("b", 1)])  # clocks go on with steps
        assert words in await said(statement, "vision")
        assert words not in await said(account, HOSTILE)


@story
async def test_a_ledger_has_a_line_for_each_loan(folder):
    async with lent(folder) as (_, said):
        found = json.loads(await said(ledger, "vision", "--json"))
        (loan,) = found["loans"]
        assert (loan["job"], loan["gpus"], found["open"], found["next"]) == ("b", 4, [], None)
        assert loan["gpu_hours"] == 4 * (loan["end"] - loan["start"]) / 3600
        text = await said(ledger, "vision")
        assert "\x1b" not in text
        assert len([line for line in text.splitlines() if " b " in line]) == 1
        assert json.loads(await said(ledger, "empty", "--json"))["loans"] == []
        await said(ledger, "vision", "--limit", 0, code=2)


@story
async def test_a_statement_is_a_self_contained_page_with_escaped_names(folder):
    async with lent(folder) as (_, said):
        out = folder / "page.html"
        text = await said(statement, HOSTILE, "--html", out)
        assert "compared          2 jobs" in text
        assert "\x1b" not in text
        page = out.read_text()
        assert "&lt;b&gt;speech&lt;/b&gt;" in page
        assert "<b>speech" not in page
        assert "\x1b" not in page
        assert "<script" not in page
        found = json.loads(await said(statement, HOSTILE, "--json"))
        assert found["totals"]["borrowed_gpu_hours"] == pytest.approx(
            sum(loan["gpu_hours"] for loan in found["loans"])
        )
        rows = found["verdicts"]
        assert [row["job"] for row in rows] == ["b", "a"]
        assert found["totals"]["sooner_hours"] == pytest.approx(-rows[0]["later"] / 3600)


@story
async def test_a_month_without_jobs_is_empty_and_an_invalid_month_is_misuse(folder):
    async with lent(folder) as (_, said):
        out = folder / "page.html"
        text = await said(statement, "empty", "--month", "2020-01", "--html", out)
        assert "compared          0 jobs" in text
        assert "speed-up          –" in text
        assert "No loan" in out.read_text()
        assert "\nopened            2" in text
        later = await said(statement, "empty", "--month", "2099-12", code=1)
        assert "2099-12 is in the future (UTC); use 2" in later
        for wrong in ("2020-13", "soon", "2020-1-1", ""):
            assert "--month" in await said(statement, "empty", "--month", wrong, code=2)
        away = await said(statement, "empty", "--html", folder / "no" / "page.html", code=2)
        assert "choose another file with --html" in away
        assert "there is no pool 'nobody'" in await said(account, "nobody", code=1)
        await said(account, code=2)


@story
async def test_an_invisible_pool_appears_not_to_exist(folder):
    async with lent(folder) as (client, said):
        asks = {"name": "v", "role": "viewer", "pools": ["vision"]}
        token = (await asked(client, "POST", "/v1/tokens", asks, status=201))["token"]
        for command in (account, ledger, statement):
            for name in ("empty", "nobody"):
                found = await said(command, name, code=1, token=token)
                assert f"it may not read in pool '{name}'" in found
        found = json.loads(await said(ledger, "vision", "--json", token=token))
        assert "job" not in found["loans"][0]
        assert " b " not in await said(ledger, "vision", token=token)
