"""The page of the policy: the stored front, a point that is looked at, set, and undone."""

import json
import os
import re
from asyncio import sleep, to_thread
from time import monotonic

from replay.experiment.folder import locked
from tests.support.daemons.doors import asked, config_in, door, job_in, story
from tests.support.servers.browsers import browser, parsed, seal_in, seen, sent
from tests.support.shell import sia_process

FIFO = "wfq:weights=1:zeta=0"
APART = "wfq:sizes=3600:weights=3+1:zeta=0"


def point(number, exact, presets, jct, error):
    """A point as `front.json` has it, with more keys than the page needs."""
    quarter = {"sizes_up_to": 1800.0, "jct_s": 60.0, "fifo_jct_s": 600.0, "pred_err_pct": 2.5}
    return {
        "number": number, "label": exact, "exact": exact, "zeta": 0.0, "delta": 1.0,
        "sizes": [3600.0] if exact == APART else [], "weights": [3.0, 1.0] if exact == APART
        else [1.0], "objectives": {}, "front_on_test": True, "presets": presets,
        "words": f"words of {number} <b>",
        "measures": {"avg:jct": jct, "avg:pred_err": error, "max:jct": 9.0},
        "by_size": [quarter, {**quarter, "sizes_up_to": None}],
    }  # fmt: skip


def store(folder, **more):
    file = config_in(folder).front
    file.parent.mkdir(parents=True, exist_ok=True)
    front = {
        "command": "sia wfq search", "pool": "speech", "gpus": 4,
        "objectives": ["avg:jct", "avg:pred_err"], "points": [point(7, APART, ["fast"], 90.0, 3.0)],
        "fifo": point(0, FIFO, ["fifo"], 900.0, 0.0), "presets": {},
    }  # fmt: skip
    file.write_text(json.dumps(front | more))


@story
async def test_a_point_of_the_front_is_set_and_undone(folder):
    store(folder)
    async with door(folder, policy=FIFO) as client, browser(client) as visitor:
        page = await seen(visitor, "/ui/policy")
        tags, _ = parsed(page)
        assert sum(tag == "circle" for tag, _ in tags) == 2
        assert "words of 7 &lt;b&gt;" in page
        assert "Set this point" not in page
        page = await seen(visitor, "/ui/policy?point=7")
        assert re.search(r"75.00\s%", page)
        assert "10 m" in page  # mean completion time under FIFO
        form = seal_in(page)
        assert (await sent(visitor, "/ui/policy", form=form, policy=APART))[0] == 303
        assert (await asked(client, "GET", "/v1/policy"))["policy"] == APART
        assert "in force" in await seen(visitor, "/ui/policy?point=7")
        assert (await sent(visitor, "/ui/policy", form=form, undo="1"))[0] == 303
        assert (await asked(client, "GET", "/v1/policy"))["policy"] == FIFO
        assert (await sent(visitor, "/ui/policy", form=form))[0] == 422


@story
async def test_without_a_front_and_with_one_of_another_cluster(folder):
    async with door(folder, policy=FIFO) as client, browser(client) as visitor:
        missing = await asked(client, "GET", "/v1/policy/front", status=404)
        assert "sia wfq update" in missing["mend"]
        assert "No front is stored" in await seen(visitor, "/ui/policy?point=3")
        store(folder, gpus=5)
        front = await asked(client, "GET", "/v1/policy/front")
        assert front["problem"].startswith("it was made for 5 GPUs")
        page = await seen(visitor, "/ui/policy?point=7")
        assert "cannot be set" in page
        assert "Set this point" not in page
        store(folder, pool="gone")
        front = await asked(client, "GET", "/v1/policy/front")
        assert front["problem"].startswith("it was made for pool gone")
        config_in(folder).front.write_text("{")
        await asked(client, "GET", "/v1/policy/front", status=404)


@story
async def test_an_update_stores_a_front_of_the_daemons_own_history(folder):
    async with door(folder, policy=FIFO) as client:
        jobs = [
            {"id": f"j{i}", "pool": "speech", "gpus": 2, "duration": 10 + 40 * (i % 3)}
            for i in range(24)
        ]
        options = "--simulations 12 --arrivals 30 --load 0.8 --objective avg:jct"
        update = ["wfq", "update", "--state", folder, *options.split()]
        update += ["--objective", "max:pred_err"]
        failed = await to_thread(sia_process, *update)
        assert failed.returncode == 2, "it looks at the newer history next time"
        assert len(failed.stderr.splitlines()) == 1
        for job in jobs:
            await asked(client, "POST", "/v1/jobs", job, status=201)
        await job_in(client, "j23", "finished")
        done = await to_thread(sia_process, *update)
        assert done.returncode == 0, done.stderr
        assert "results:" not in done.stdout, "they have been moved"
        assert f"stored: {folder / 'front' / 'front.json'}" in done.stdout
        front = await asked(client, "GET", "/v1/policy/front")
        assert (front["pool"], front["gpus"], front["problem"]) == ("speech", 4, "")
        assert front["objectives"] == ["avg:jct", "max:pred_err"]
        assert sorted(each.name for each in (folder / "front").iterdir()) == [
            "front.json", "front.png", "front.svg", "points.csv",
        ]  # fmt: skip
        (folder / "front" / "front.json").unlink()
        nobody, lines = os.pipe()
        os.close(nobody)  # as `| head` does
        done = await to_thread(sia_process, *update, stdout=lines)
        os.close(lines)
        assert done.returncode == 1
        assert (folder / "front" / "front.json").exists(), "it is stored before it is shown"


@story
async def test_an_update_runs_beside_the_daemon_and_is_stopped(folder):
    async with door(folder, policy=FIFO) as client, browser(client) as visitor:
        place = "/v1/policy/front/update"
        assert await asked(client, "GET", place) == {"running": False, "began": None, "said": ""}
        page = await seen(visitor, "/ui/policy")
        assert "avg:jct, avg:pred_err" in page
        form = seal_in(page)
        wrong = await asked(client, "POST", place, {"objectives": ["avg:jtc"]}, status=422)
        assert "no metric 'jtc'" in wrong["detail"]
        await asked(client, "POST", place, {"pool": "nowhere"}, status=404)
        field = {"update": "1", "objectives": "avg:jct max:unfairness", "pool": "speech"}
        assert (await sent(visitor, "/ui/policy", form=form, **field))[0] == 303
        await asked(client, "POST", place, {}, status=409)
        assert "Stop the update" in await seen(visitor, "/ui/policy")
        assert (await sent(visitor, "/ui/policy", form=form, cancel="1"))[0] == 303
        said = await asked(client, "GET", place)
        assert (said["running"], said["said"][:9]) == (False, "cancelled")
        await asked(client, "POST", place, {"pool": "speech", "load": 0.8}, status=202)
        deadline = monotonic() + 30
        while (said := await asked(client, "GET", place))["running"]:
            assert monotonic() < deadline
            await sleep(0.05)
        assert "jobs" in said["said"], "the history of this daemon is empty"
        assert said["said"].startswith("sia: ")


def test_an_update_without_a_daemons_folder_makes_none(tmp_path):
    failed = sia_process("wfq", "update", "--state", tmp_path / "typo")
    assert failed.returncode == 2
    assert failed.stderr.splitlines() == [
        f"sia: {tmp_path / 'typo'}: no such folder; use the --state of the daemon"
    ]
    assert not (tmp_path / "typo").exists()


def test_a_second_update_leaves_the_first_alone(tmp_path):
    kept = tmp_path / "front"
    (kept / "next-0123").mkdir(parents=True)
    with locked(kept, "sia wfq update", "stop it"):
        failed = sia_process("wfq", "update", "--state", tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.splitlines() == [
        f"sia: {kept}: in use by another sia wfq update; wait for it to end, or stop it"
    ]
    assert (kept / "next-0123").exists()
