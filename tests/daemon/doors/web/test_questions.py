"""What-if by a form, and the audit: the API's answers, for those who may have them."""

import pytest

from daemon.doors.views.html import exactly
from daemon.doors.web.pages.whatif import question
from daemon.doors.web.why_tree import trace
from daemon.model.job import JobPhase
from daemon.wire.explain import JobWhy
from sia.explain.obstacles import Reservation
from sia.limits import MAX_GROUP
from tests.daemon.doors.web.test_jobs import rows_in, send, token_of
from tests.daemon.doors.web.test_places import NODES
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.servers.browsers import browser, filled, parsed, seal_in, seen, sent, when

JOB = {"new_pool": "vision", "new_gpus": "8", "new_run_time": "10m"}


async def crowd(client):
    """One that runs for an hour, and two behind it."""
    for job_id in ("runs", "next", "last"):
        await send(client, job_id, run_time=3600.0)
    await job_in(client, "runs", "running")


@story
async def test_the_answer_equals_that_of_the_api_and_nothing_is_changed(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await crowd(client)
        form = seal_in(await seen(visitor, "/ui/whatif"))
        fields = {"job": "next", "job_cancel": "yes", "horizon": "6h"}
        status, page = await sent(visitor, "/ui/whatif", form=form, **fields)
        assert status == 200, page
        body = {"jobs": [{"job": "next", "cancel": True}], "horizon": 21600}
        said = await asked(client, "POST", "/v1/whatif", body)
        rows, text = rows_in(page), parsed(page)[1]
        assert [moved["job"] for moved in said["earlier"]] == ["last"]
        assert any(row.startswith("last vision 8 ") and row.endswith("1 h sooner") for row in rows)
        assert any(row.startswith("next vision 8 ") and "cancelled" in row for row in rows)
        assert when(said["earlier"][0]["then"]) in page
        (pool,) = said["pools"]
        assert f"vision {pool['earlier']} 1 h {pool['earlier_gpu_hours']:.2f} 0 " in text
        for note in said["notes"]:
            assert note in text
        assert 'name="job" value="next"' in page
        assert 'value="yes" checked' in page
        assert (await asked(client, "GET", "/v1/jobs/next"))["phase"] == "pending"


@story
async def test_the_form_asks_about_a_new_job_a_quota_a_node_and_lending(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client, browser(client) as visitor:
        await crowd(client)
        form = seal_in(await seen(visitor, "/ui/whatif"))
        for fields in (
            JOB, {"pool": "speech", "quota": "2"}, {"drain": "n0"}, {"lending": "off"},
        ):  # fmt: skip
            status, page = await sent(visitor, "/ui/whatif", form=form, **fields)
            assert status == 200, page
            assert "Simulated the next" in page
            assert (">new job<" in page) is (fields is JOB)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({}, 422, "no change given"),
        ({"new_pool": "vision", "new_gpus": "eight"}, 422, "GPUs: 'eight' is not an integer"),
        ({"new_pool": "<b>", "new_gpus": "1"}, 422, ""),
        ({**JOB, "new_run_time": "soon"}, 422, "Run time: 'soon' is not a time"),
        ({**JOB, "new_gpus": "99"}, 422, ""),
        ({"job": "nobody", "job_cancel": "yes"}, 404, "there is no job 'nobody'"),
        ({"pool": "vision", "weight": "heavy"}, 422, "Weight: 'heavy' is not a number"),
        ({"pool": "vision", "quota": "-1"}, 422, ""),
        ({"quota": "3"}, 422, "pools"),
        ({"drain": "none"}, 404, "no node"),
        ({"lending": "off", "horizon": "9999d"}, 422, "horizon"),
    ],
)
def test_an_error_is_shown_beside_the_values_that_were_entered(tmp_path, fields, status, words):
    @story
    async def tell(folder):
        async with door(folder, speed=1.0) as client, browser(client) as visitor:
            form = seal_in(await seen(visitor, "/ui/whatif"))
            told, page = await sent(visitor, "/ui/whatif", form=form, **fields)
            assert told == status, page
            text = parsed(page)[1]
            assert words.lower() in text.lower()
            kept = filled(page)
            assert {name: kept[name] for name in fields} == fields
            assert 'role="alert"' in page

    tell(tmp_path)


def test_empty_fields_are_not_part_of_the_question():
    given = {"new_pool": "a", "lend_limit": "none", "pool": "b", "job_cancel": "", "horizon": "2h"}
    assert question(given) == {
        "submit": [{"pool": "a", "gpus": 1}], "pools": [{"lend_limit": None, "pool": "b"}],
        "horizon": 7200.0,
    }  # fmt: skip
    assert question({}) == {}


@story
async def test_questions_about_invisible_pools_are_refused(folder):
    async with door(folder, speed=1.0) as client:
        await crowd(client)
        token = await token_of(client, role="viewer", pools=["speech"])
        async with browser(client, token) as visitor:
            form = seal_in(await seen(visitor, "/ui/whatif"))
            status, page = await sent(visitor, "/ui/whatif", form=form, job="next", job_cancel="y")
            assert (status, "There is no job 'next'" in parsed(page)[1]) == (404, True)
            assert (await sent(visitor, "/ui/whatif", form=form, **JOB))[0] == 403
            fields = {"pool": "speech", "quota": "0"}
            status, page = await sent(visitor, "/ui/whatif", form=form, **fields)
            assert status == 200, page
            assert 'href="/ui/jobs/' not in page
            assert (await sent(visitor, "/ui/whatif", lending="off"))[0] == 403


@story
async def test_the_form_begins_with_a_job(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await crowd(client)
        assert "/ui/whatif?job=next" in await seen(visitor, "/ui/jobs/next")
        tags, _ = parsed(await seen(visitor, "/ui/whatif?job=next%22%3E%3Cb%3E"))
        (field,) = [a for tag, a in tags if tag == "input" and a.get("name") == "job"]
        assert field["value"] == 'next"><b>'
        assert "b" not in {tag for tag, _ in tags}


def test_a_trace_states_unknown_values_in_words():
    held = Reservation("speech", 60.0, 4, 0, MAX_GROUP, until=0.0)
    why = JobWhy("j", "vision", JobPhase.PENDING, 0.0, [], obstacles=[held])
    ((_, _, ((_, facts),)),) = trace(why, 0.0)
    assert ("forecast", "not ready yet") in facts
    assert ("pending", "0") in facts


@story
async def test_the_audit_page_shows_times_as_times(folder):
    async with door(folder) as client, browser(client) as visitor:
        body = {"name": "ann", "role": "viewer", "lasts": 3600.0}
        made = await asked(client, "POST", "/v1/tokens", body, status=201)
        page = await seen(visitor, "/ui/audit")
        assert f"expires</bdi> {exactly(made['expires'])}" in page
        assert str(made["expires"]) not in page


@story
async def test_the_audit_page_shows_the_newest_records_first_to_operators(folder):
    async with door(folder, nodes=NODES, speed=1.0) as client, browser(client) as visitor:
        for i in range(103):
            what = "resume" if i % 2 else "drain"
            await asked(client, "POST", f"/v1/nodes/n0/{what}", {"why": "<script>x</script>"})
        said = await asked(client, "GET", "/v1/audit?limit=1000")
        records = [each["record"] for each in said["records"]]
        first, second = [await seen(visitor, f"/ui/audit?page={page}") for page in (1, 2)]
        assert said["head"] in first
        assert "<script>x" not in first
        assert "<script>x" in parsed(first)[1]
        shown = [int(row.split()[0]) for page in (first, second) for row in rows_in(page)[1:]]
        assert shown == [record["number"] for record in reversed(records)]
        for record, row in zip(reversed(records), rows_in(first)[1:], strict=False):
            assert f"{record['who']} {record['origin']} {record['what']}" in row
            assert when(record["time"]) in first
        assert "No records." in await seen(visitor, "/ui/audit?page=9")
        assert "/ui/audit" in await seen(visitor, "/ui/")
        token = await token_of(client, role="admin", pools=["vision"])
        async with browser(client, token) as other:
            await seen(other, "/ui/audit", 403)
            assert "/ui/audit" not in await seen(other, "/ui/")
