"""Tables: sorted by any column, in pages, with bounds."""

from functools import partial
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.config import NodeConfig
from daemon.doors.web.tables import Column, ordered_by
from daemon.model.account import Booked, Lent
from tests.daemon.doors.web.test_jobs import send
from tests.support.daemons.doors import asked, door, story
from tests.support.servers.browsers import browser, parsed, rows_of, seen

COLUMNS = (Column("a", "A", itemgetter(0)), Column("b", "B"))


@given(st.lists(st.tuples(st.none() | st.integers(), st.integers())))
def test_rows_without_a_value_come_last_and_equal_ones_stay_in_order(rows):
    known = [row for row in rows if row[0] is not None]
    unknown = [row for row in rows if row[0] is None]
    assert ordered_by(COLUMNS, rows, "a") == sorted(known, key=itemgetter(0)) + unknown
    down = ordered_by(COLUMNS, rows, "-a")
    assert down == sorted(known, key=itemgetter(0), reverse=True) + unknown
    for none in ("", "b", "c"):
        assert ordered_by(COLUMNS, rows, none) == rows


@story
async def test_a_heading_sorts_and_reverses_the_order_when_chosen_again(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        for job_id, gpus in (("b", 2), ("a", 4), ("c", 1)):
            await send(client, job_id, gpus=gpus)
        page = await seen(visitor, "/ui/jobs?pool=vision")
        assert [row["Job"] for row in rows_of(page, "job-table")] == ["c", "a", "b"]
        for order in ("a b c", "c b a", "a b c"):
            page = await seen(visitor, link_of(page, "Job"))
            assert " ".join(row["Job"] for row in rows_of(page, "job-table")) == order
        page = await seen(visitor, link_of(page, "GPUs"))
        assert [row["GPUs"] for row in rows_of(page, "job-table")] == ["4", "2", "1"]
        assert "pool=vision" in link_of(page, "Job")
        heads = [
            has.get("aria-sort")
            for tag, has in parsed(page)[0]
            if tag == "th" and "aria-sort" in has
        ]
        assert heads == ["descending"]


def link_of(page, title):
    """The address behind a heading."""
    end = page.index(f">{title}</a>")
    start = page.rindex('href="', 0, end) + len('href="')
    return page[start : page.index('"', start)].replace("&amp;", "&")


QUEUES = ("position", "job", "pool", "user", "gpus", "submitted", "p50", "p90")


@pytest.mark.parametrize("what", ["waiting", "held", "running"])
def test_every_column_of_the_queue_sorts(tmp_path, what):
    @story
    async def tell(folder):
        async with door(folder, speed=1.0) as client, browser(client) as visitor:
            for i in range(4):
                await send(client, f"j{i}", gpus=4, user=f"u{3 - i}", hold=what == "held")
            for key in QUEUES:
                for sort in (key, f"-{key}"):
                    await seen(visitor, f"/ui/queue?what={what}&sort={sort}")
            page = await seen(visitor, f"/ui/queue?what={what}&sort=user")
            users = [row["User"] for row in rows_of(page, "queue-table")]
            assert users == sorted(users)
            assert users
            await seen(visitor, f"/ui/queue?what={what}&sort=secret", 422)

    tell(tmp_path)


@story
async def test_of_very_many_rows_only_the_first_are_sorted_and_the_page_says_so(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        jobs = [
            {"id": f"j{i}", "pool": "vision", "gpus": 1 + i % 8, "duration": 1e6}
            for i in range(2100)
        ]
        await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        for what in ("queue", "jobs"):
            path, table = f"/ui/{what}?sort=-gpus", f"{what.removesuffix('s')}-table"
            page = await seen(visitor, path)
            assert "Only the first 2,000 of" in parsed(page)[1]
            assert "Page 1 of 20" in parsed(page)[1]
            assert {row["GPUs"] for row in rows_of(page, table)} == {"8"}
            last = await seen(visitor, f"{path}&page=20")
            assert {row["GPUs"] for row in rows_of(last, table)} == {"1"}
        page = await seen(visitor, "/ui/queue?sort=-gpus&pool=speech")
        assert "Only the first" not in parsed(page)[1]


@story
async def test_the_audit_sorts_and_is_searched_by_every_column_and_by_time(folder):
    async with (
        door(folder, nodes=(NodeConfig("n0", 8), NodeConfig("n1", 4)), speed=1.0) as client,
        browser(client) as visitor,
    ):
        for node, what in (("n0", "drain"), ("n1", "drain"), ("n0", "resume")):
            await asked(client, "POST", f"/v1/nodes/{node}/{what}", {"why": "fan"})
        records = [each["record"] for each in (await asked(client, "GET", "/v1/audit"))["records"]]

        async def numbers(query):
            page = await seen(visitor, f"/ui/audit?{query}")
            return [int(row["Number"]) for row in rows_of(page, "audit-table")]

        for key in ("number", "time", "who", "origin", "what", "target"):
            by_number = {record["number"]: record[key] for record in records}
            for sort, values in (
                (key, sorted(by_number.values())),
                (f"-{key}", sorted(by_number.values(), reverse=True)),
            ):
                assert [by_number[number] for number in await numbers(f"sort={sort}")] == values
        drains = [r["number"] for r in records if r["what"] == "drain" and r["target"] == "n0"]
        assert await numbers("what=DRAI&target=n0") == drains
        assert await numbers("who=nobody") == []
        last = records[-1]
        assert await numbers(f"from={last['time']}") == [last["number"]]
        assert await numbers(f"to={last['time']}&sort=number") == [
            record["number"] for record in records[:-1]
        ]
        await seen(visitor, "/ui/audit?sort=secret", 422)
        await seen(visitor, "/ui/audit?from=2&to=1", 422)


@story
async def test_the_ledger_sorts_and_is_searched_by_pool_and_time(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        loans = [
            Lent(f"j{i}", "vision", "speech", gpus, 10.0 * i, 10.0 * i + 5)
            for i, gpus in enumerate((4, 2, 8))
        ]
        loans.append(Lent("x", "vision", "other", 1, 0.0, 9.0))
        now = client.service.clock.now()
        await send(client, "opens-the-account", gpus=1)
        for i, loan in enumerate(loans):
            await client.service.journal(partial(book, loan=loan, time=now - 100.0 + i))

        async def jobs(query):
            page = await seen(visitor, f"/ui/pools/vision/ledger?{query}")
            return " ".join(row["Job"] for row in rows_of(page, "loans-table"))

        hidden = "another pool's"
        assert await jobs("") == "x j2 j1 j0"
        assert await jobs("sort=gpus") == "x j1 j0 j2"
        assert await jobs("sort=-gpus") == "j2 j0 j1 x"
        assert await jobs("sort=start&other=speech") == "j0 j1 j2"
        assert await jobs("other=other") == "x"
        assert await jobs(f"from={now - 99.5:.3f}&to={now - 97.5:.3f}") == "j2 j1"
        assert hidden not in await jobs("sort=hours")
        page = await seen(visitor, "/ui/pools/vision/ledger?sort=gpus")
        assert "sort=-gpus" in page
        assert "Newest first" in page
        await seen(visitor, "/ui/pools/vision/ledger?sort=luck", 422)


def book(journal, loan, time):
    """Write a loan as a step does."""
    with journal.store.transaction():
        journal._book(Booked([], [loan]), time)
