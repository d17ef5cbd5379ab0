"""Pages from which nodes are drained and jobs' priorities set, by those who may, and audited."""

from daemon.config.config import NodeConfig
from tests.daemon.doors.web.test_jobs import rows_in, send, token_of
from tests.support.daemons.doors import asked, door, story
from tests.support.servers.browsers import browser, parsed, seal_in, seen, sent

NODES = tuple(NodeConfig(f"n{i}", 4) for i in range(3))


async def out(client):
    return {
        node["name"]: node["out"] for node in (await asked(client, "GET", "/v1/nodes"))["nodes"]
    }


async def changes(client):
    records = (await asked(client, "GET", "/v1/audit"))["records"]
    said = [each["record"] for each in records]
    return [
        (each["who"], each["what"], each.get("target", ""), each.get("status", 200))
        for each in said
    ]


@story
async def test_an_operator_drains_a_node_and_resumes_it(folder):
    async with door(folder, nodes=NODES) as client:
        token = await token_of(client, name="ops", role="operator")
        async with browser(client, token) as visitor:
            page = await seen(visitor, "/ui/nodes?q=n1")
            assert "/ui/nodes/n1/resume" not in page
            form, to = seal_in(page), "/ui/nodes?q=n1"
            assert f'name="to" value="{to}"' in page
            there = await sent(visitor, "/ui/nodes/n1/drain", form=form, why=" fan <b>", to=to)
            assert there == (303, to)
            assert await out(client) == {"n0": {}, "n1": {"operator": "fan <b>"}, "n2": {}}
            page = await seen(visitor, to)
            assert "n1 4 0 out : operator , fan <b>" in rows_in(page)[-1]
            assert "/ui/nodes/n1/drain" not in page
            elsewhere = {"form": form, "to": "//evil.example/ui/"}
            there = await sent(visitor, "/ui/nodes/n1/resume", **elsewhere)
            assert there == (303, "/ui/nodes")
            assert await out(client) == {"n0": {}, "n1": {}, "n2": {}}
            assert (await sent(visitor, "/ui/nodes/none/drain", form=form))[0] == 404
            status, page = await sent(visitor, "/ui/nodes/n1/drain", form=form, why="x" * 9000)
            assert status == 422, page
        done = [each for each in await changes(client) if each[0] == "ops"]
        assert done[:2] == [("ops", "drain", "n1", 200), ("ops", "resume", "n1", 200)]


@story
async def test_only_operators_can_change_nodes(folder):
    async with door(folder, nodes=NODES) as client:
        token = await token_of(client, name="ann", role="admin", pools=["vision"])
        async with browser(client, token) as visitor:
            page = await seen(visitor, "/ui/nodes")
            assert "/drain" not in page
            assert "Change" not in parsed(page)[1]
            form = seal_in(await seen(visitor, "/ui/settings"))
            for what in ("drain", "resume"):
                assert (await sent(visitor, f"/ui/nodes/n0/{what}", form=form))[0] == 403
        assert await out(client) == {"n0": {}, "n1": {}, "n2": {}}
        assert ("ann", "POST", "/ui/nodes/n0/drain", 403) in await changes(client)


@story
async def test_an_admin_can_set_a_priority_and_a_submitter_cannot(folder):
    async with door(folder, speed=1.0) as client:
        for job in ("runs", "first", "second"):
            await send(client, job)
        admin = await token_of(client, name="adm", role="admin", pools=["vision"])
        mine = await token_of(client, name="ann", role="submitter", pools=["vision"])
        path = "/ui/jobs/second/priority"
        async with browser(client, mine) as visitor:
            page = await seen(visitor, "/ui/jobs/second")
            assert path not in page
            assert (await sent(visitor, path, form=seal_in(page), priority="5"))[0] == 403
        async with browser(client, admin) as visitor:
            page = await seen(visitor, "/ui/jobs/second")
            form = seal_in(page)
            assert path in page
            assert "/priority" not in await seen(visitor, "/ui/jobs/runs")
            there = await sent(visitor, path, form=form, priority="7")
            assert there == (303, "/ui/jobs/second")
            job = await asked(client, "GET", "/v1/jobs/second")
            assert (job["priority"], job["position"]) == (7, 1)
            assert 'type="number" step="1" required size="6" value="7"' in (
                await seen(visitor, "/ui/jobs/second")
            )
            for wrong in ("", "1.5", "1_0", "٣", " 5 ", "1" * 5000, "9999999", "<script>"):
                status, page = await sent(visitor, path, form=form, priority=wrong)
                assert status == 422, page
                assert "<script>alert" not in page
            status, _ = await sent(visitor, "/ui/jobs/runs/priority", form=form, priority="1")
            assert status == 409
        assert ("adm", "priority", "second", 200) in await changes(client)


@story
async def test_the_priority_of_an_array_is_set_as_a_whole(folder):
    async with door(folder, speed=1.0) as client, browser(client) as visitor:
        await send(client, "runs")
        await send(client, "a", gpus=4, array=3)
        form = seal_in(await seen(visitor, "/ui/jobs/a"))
        there = await sent(visitor, "/ui/jobs/a/priority", form=form, priority="-3")
        assert there == (303, "/ui/jobs/a")
        for i in range(3):
            assert (await asked(client, "GET", f"/v1/jobs/a.{i}"))["priority"] == -3
