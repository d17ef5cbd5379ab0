"""Tables: sorted by any column, in pages, with bounds."""

from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.doors.web.tables import Column, ordered_by
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
async def test_a_heading_sorts_and_sorts_again_the_other_way(folder):
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
async def test_only_the_first_of_very_many_are_sorted_and_the_page_says_so(folder):
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
