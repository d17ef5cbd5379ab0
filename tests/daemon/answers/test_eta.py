"""Estimates of a daemon that serves: asked for, refreshed, given, kept, held to what happened."""

import asyncio
import os
import signal
import sqlite3
from contextlib import asynccontextmanager, suppress
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from daemon.answers.estimates.calibration import Given, StatedMoment
from daemon.answers.estimates.pacing import SimulationBudget
from daemon.answers.estimates.table import (
    MEMORY_KEPT,
    EstimateMemory,
    EstimateTable,
    estimate_store,
)
from daemon.answers.estimates.worlds import Outlook
from daemon.cli.answers.estimates import estimates, eta, evidence
from daemon.cli.client import Client
from daemon.config.config import PoolConfig
from daemon.doors.mqtt.executor import CommandHandler
from daemon.doors.mqtt.requests import ParsedMessage
from daemon.model.job import JobSpec
from sia.model import Job
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import TOKEN, asked, door, job_in, story

POOLS = (PoolConfig("vision", 4), PoolConfig("speech", 1))


@asynccontextmanager
async def estimating(folder, rest=1e6, **settings):
    """A daemon that estimates; it is refreshed when a test says so."""
    async with door(folder, pools=POOLS, speed=1.0, **settings) as client:
        client.eta.pace = SimulationBudget(1e6)
        client.eta.pace.rest = rest
        running = asyncio.create_task(client.eta.run())
        await until(lambda: client.eta.ready)
        client.eta._changed = False  # or what a test teaches at once may be looked at unasked
        try:
            yield client
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def send(client, *names, pool="vision", gpus=1, **more):
    """Jobs alike."""
    jobs = [{"id": name, "pool": pool, "gpus": gpus, **more} for name in names]
    said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
    assert said["refused"] == 0, said


def taught(client, count=40, seconds=1000.0, pool="vision"):
    """Long ago so many jobs ran so long each."""
    lasting, first = client.eta.heard.lasting, client.service.clock.now() - 1e8
    for i in range(count):
        now = first + i * 1e5
        job = Job(f"before{i}", pool, now, 1)
        lasting.submitted(job)
        lasting.started(now, job)
        lasting.finished(now + seconds, job, seconds)
    lasting.advance(client.service.clock.now())
    assert lasting.knows()


@story
async def test_a_pending_job_has_an_estimated_start_and_end(folder):
    async with estimating(folder) as client:
        taught(client)
        await send(client, "x", pool="speech", duration=1e6)
        await send(client, "wide", gpus=4, duration=1e6)
        await send(client, "y", pool="vision", duration=10.0)
        await job_in(client, "wide", "running")
        await client.eta.look()
        assert isinstance(client.eta.outlook, Outlook)
        said = await asked(client, "GET", "/v1/jobs/y/eta")
        assert (said["phase"], said["estimate"]["by"]) == ("pending", "playout")
        start, end = said["estimate"]["start"], said["estimate"]["end"]
        assert said["now"] <= start["p50"] <= end["p50"]
        assert start["p50"] <= start["p90"] <= end["p90"]
        assert [each["by"] for each in said["given"]] == ["playout"]
        assert said["played"] == client.eta.outlook.now
        running = await asked(client, "GET", "/v1/jobs/wide/eta")
        assert "start" not in running["estimate"]
        assert "played" not in running, "its end needs none"
        assert running["started"] <= running["now"] <= running["estimate"]["end"]["p50"]


@story
async def test_a_progress_report_changes_the_jobs_end_at_once_and_others_soon(
    folder,
):
    async with estimating(folder) as client:
        taught(client)
        await send(client, "first", pool="speech", duration=1e6, run_time=2000.0)
        await send(client, "next", pool="speech", duration=1e6)
        await job_in(client, "first", "running")
        before = (await asked(client, "GET", "/v1/jobs/first/eta"))["estimate"]["end"]["p50"]
        report = {"attempt": 1, "done": 0.0, "speed": 0.1}
        said = await asked(client, "POST", "/v1/jobs/first/progress", report)
        assert said["end"] == pytest.approx(said["at"] + 20_000)
        after = (await asked(client, "GET", "/v1/jobs/first/eta"))["estimate"]["end"]["p50"]
        assert after == pytest.approx(said["end"])
        assert after > before + 10_000
        await client.eta.look()
        behind = (await asked(client, "GET", "/v1/jobs/next/eta"))["estimate"]
        assert behind["start"]["p50"] == pytest.approx(said["end"])


@story
async def test_whatif_and_eta_agree_on_a_new_job(folder):
    """Of the same worlds, moved alike; what its owner says about its run time counts for both."""
    async with estimating(folder) as client:
        taught(client)
        await send(client, "wide", gpus=4, duration=1e6)
        await job_in(client, "wide", "running")
        new = {"pool": "vision", "gpus": 1, "run_time": 90_000.0}
        asking = {"submit": [new], "horizon": 60}
        then = (await asked(client, "POST", "/v1/whatif", asking))["jobs"][0]["then"]
        await send(client, "y", run_time=90_000.0)
        await client.eta.look()
        said = (await asked(client, "GET", "/v1/jobs/y/eta"))["estimate"]
        assert (then["by"], said["by"], then["within"]) == ("playout", "playout", 604_800.0)
        assert "little" not in then
        assert (then["similar"], then["in_pool"]) == (said["similar"], said["in_pool"])
        assert evidence(then) == evidence(said)
        for what in ("start", "end"):
            for late, key in ((what, "p50"), (f"{what}_p90", "p90")):
                away = said[what][key] - said["made"]
                assert then[late] - said["made"] == pytest.approx(away, rel=0.3, abs=60)
        lasts = then["end"] - then["start"]
        assert lasts > 45_000, "40 jobs of the pool ran for 1000 s, but none of them stated a time"


@story
async def test_an_estimate_says_on_how_many_ended_jobs_it_rests(folder):
    async with estimating(folder) as client:
        taught(client, count=40, pool="vision")
        taught(client, count=3, pool="speech")
        await send(client, "wide", gpus=4, duration=1e6)
        await send(client, "loud", pool="speech", user="ann", duration=1e6)
        for name, evidence in (("wide", (0, 40)), ("loud", (0, 3))):
            await job_in(client, name, "running")
            said = (await asked(client, "GET", f"/v1/jobs/{name}/eta"))["estimate"]
            assert (said["similar"], said["in_pool"]) == evidence
            known = "" if evidence[1] == 40 else "only 3 jobs of pool speech have ended"
            assert said["little"] == known
        await send(client, "narrow")
        await client.eta.look()
        said = (await asked(client, "GET", "/v1/jobs/narrow/eta"))["estimate"]
        assert (said["similar"], said["in_pool"]) == (40, 40)


@story
async def test_with_a_fast_clock_estimates_are_made_more_often(folder):
    for speed, every in ((1.0, 30.0), (3.0, 10.0), (3600.0, 2.0)):
        async with door(folder / str(speed), pools=POOLS, speed=speed) as client:
            assert client.eta.pace.wait == pytest.approx(every, rel=0.01)


@story
async def test_an_unknown_estimate_comes_with_its_reason(folder):
    async with estimating(folder) as client:
        await send(client, "x", pool="vision", duration=1e6)
        await job_in(client, "x", "running")
        said = await asked(client, "GET", "/v1/jobs/x/eta")
        assert "estimate" not in said
        assert said["why"] == (
            "not known yet: 10 jobs must have run first, and 0 have; or all active jobs must state "
            "their run times (--estimate), and 1 does not"
        )
        await send(client, "held", hold=True)
        said = await asked(client, "GET", "/v1/jobs/held/eta")
        assert said["why"] == "the job is held until it is released"
        await asked(client, "PATCH", "/v1/pools/speech", {"state": "hold"})
        await send(client, "s", pool="speech")
        assert "on hold" in (await asked(client, "GET", "/v1/jobs/s/eta"))["why"]
        problem = await asked(client, "GET", "/v1/jobs/nobody/eta", status=404)
        assert problem["detail"] == "there is no job 'nobody'"
        await send(client, "many", array=3)
        problem = await asked(client, "GET", "/v1/jobs/many/eta", status=422)
        assert problem["mend"] == "use one of its jobs, like many.0"
        await asked(client, "DELETE", "/v1/jobs/x", status=202)
        await job_in(client, "x", "cancelled")
        said = await asked(client, "GET", "/v1/jobs/x/eta")
        assert said["why"] == "the job has ended"
        assert said["started"] <= said["ended"]


@story
async def test_stated_run_times_suffice_before_any_job_has_run(folder):
    """And the answer says that it rests on them. A job that states nothing ends that."""
    async with estimating(folder) as client:
        new = {"pool": "vision", "gpus": 4, "run_time": 3000.0}
        then = (await asked(client, "POST", "/v1/whatif", {"submit": [new]}))["jobs"][0]["then"]
        assert then["little"] == (
            "no job of pool vision has ended: "
            "the estimate rests on the run time that the job states"
        )
        await send(client, "first", gpus=4, duration=1e6, run_time=3000.0)
        await job_in(client, "first", "running")
        await send(client, "second", gpus=4, duration=1e6, run_time=1000.0)
        await until(client.eta._knows)
        await client.eta.look()
        ends = {}
        for name, seconds in (("first", 3000.0), ("second", 4000.0)):
            said = await asked(client, "GET", f"/v1/jobs/{name}/eta")
            assert said["estimate"]["stated"]
            assert said["estimate"]["little"] == then["little"]
            ends[name] = said["estimate"]["end"]["p50"] - said["now"]
            assert ends[name] == pytest.approx(seconds, rel=0.6)
        assert ends["first"] < ends["second"]
        await send(client, "silent", duration=1e6)
        await until(lambda: client.eta.heard.lasting.unstated() == 1)
        why = (await asked(client, "GET", "/v1/jobs/second/eta"))["why"]
        assert why.endswith("jobs must state their run times (--estimate), and 1 does not")
        await asked(client, "DELETE", "/v1/jobs/silent", status=202)
        await until(lambda: client.eta.heard.lasting.unstated() == 0)
        assert "estimate" in await asked(client, "GET", "/v1/jobs/second/eta")


@story
async def test_jobs_of_other_pools_need_no_stated_run_times_if_nothing_is_shared(folder):
    async with estimating(folder, policy="wfq") as client:
        await send(client, "silent", pool="speech", duration=1e6)
        await send(client, "says", gpus=4, duration=1e6, run_time=3000.0)
        await job_in(client, "says", "running")
        await until(lambda: client.eta.heard.lasting.unstated() == 1)
        assert (await asked(client, "GET", "/v1/jobs/says/eta"))["estimate"]["stated"]
        why = (await asked(client, "GET", "/v1/jobs/silent/eta"))["why"]
        assert "or all active jobs of pool speech must state their run times" in why


@story
async def test_jobs_that_have_ended_count_although_nothing_happens_afterwards(folder):
    async with estimating(folder) as client:
        lasting, now = client.eta.heard.lasting, client.service.clock.now()
        for i in range(12):
            job = Job(f"before{i}", "vision", now - 2.0, 1)
            lasting.submitted(job)
            lasting.started(now - 2.0, job)
            lasting.finished(now - 1.0, job, 1.0)
        await send(client, "x", pool="vision", duration=1e6)
        await job_in(client, "x", "running")
        assert "estimate" not in await asked(client, "GET", "/v1/jobs/x/eta")
        with patch.object(type(client.service.clock), "now", lambda _: now + 60.0):
            assert "estimate" in await asked(client, "GET", "/v1/jobs/x/eta")


@story
async def test_estimates_can_be_turned_off_in_the_configuration(folder):
    async with door(folder, pools=POOLS, speed=1.0, estimates=False) as client:
        await send(client, "x")
        said = await asked(client, "GET", "/v1/jobs/x/eta")
        assert said["why"] == "estimates are turned off (daemon.estimates = false)"


@story
async def test_estimates_are_compared_with_outcomes(folder):
    async with estimating(folder) as client:
        taught(client)
        assert (await asked(client, "GET", "/v1/estimates"))["rows"] == []
        await send(client, *(f"j{i}" for i in range(4)), duration=3.0)
        await client.eta.look()
        await until(lambda: not client.service.book.jobs, 20)
        tallies = client.eta.heard.calibration.tallies
        await until(lambda: sum(t.count for k, t in tallies.items() if k[0] == "end") >= 4)
        said = await asked(client, "GET", "/v1/estimates?pool=vision")
        assert said["played"] is not None
        ends = [row for row in said["rows"] if row["what"] == "end"]
        assert sum(row["count"] for row in ends) >= 4
        assert all(0 <= row["p50_covered"] <= 1 for row in ends)
        assert (await asked(client, "GET", "/v1/estimates?pool=speech"))["rows"] == []
        await asked(client, "GET", "/v1/estimates?pool=nowhere", status=404)
        env = {"SIA_URL": str(client.make_url("/")), "SIA_TOKEN": TOKEN}

        async def shown(*arguments):
            return await asyncio.to_thread(CliRunner().invoke, estimates, arguments, env=env)

        nowhere = await shown("--pool", "nowhere")
        assert (nowhere.exit_code, "there is no pool 'nowhere'" in nowhere.output) == (1, True)
        (of,) = {row["p50_judged"] for row in ends if row["count"]}
        assert f" % of {of}" in (await shown("--pool", "vision")).output
        async with client.get("/metrics") as response:
            text = await response.text()
        assert 'sia_estimates_total{horizon="3600",outcome="covered",pool="vision"' in text
        assert "sia_estimate_pred_err" in text


@story
async def test_the_answer_of_a_submission_has_an_estimate_if_that_is_cheap(folder):
    async with estimating(folder) as client:
        taught(client)
        body = {"id": "x", "pool": "vision", "gpus": 1, "duration": 1e6}
        said = await asked(client, "POST", "/v1/jobs", body, status=201)
        assert (said["id"], said["estimate"]["by"]) == ("x", "playout")
        assert said["estimate"]["end"]["p50"] > said["estimate"]["made"]
        again = await asked(client, "POST", "/v1/jobs", body)
        assert again == {"id": "x"}
        given = (await asked(client, "GET", "/v1/jobs/x/eta")).get("given", [])
        await until(lambda: client.eta._unkept == [])
        assert given in ([], [said["estimate"]])  # it is written soon


@story
async def test_the_answer_of_a_batch_has_an_estimate_of_each_job(folder):
    async with estimating(folder) as client:
        taught(client)
        jobs = [{"id": f"j{i}", "pool": "vision", "gpus": 1, "duration": 1e6} for i in range(3)]
        jobs.append({"id": "many", "pool": "vision", "gpus": 1, "array": 2, "duration": 1e6})
        jobs.append({"id": "wide", "pool": "vision", "gpus": 100})
        said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        *single, array, wide = said["jobs"]
        assert all(line["estimate"]["end"]["p50"] > line["estimate"]["made"] for line in single)
        assert "estimate" not in array
        assert (wide["status"], "estimate" in wide) == (422, False)
        given = []
        while not given:  # it is written soon
            given = (await asked(client, "GET", "/v1/jobs/j1/eta")).get("given", [])
        assert given == [single[1]["estimate"]], "it is given once, whoever is told"
        again = await asked(client, "POST", "/v1/jobs", {"jobs": jobs[:1]})
        assert again["jobs"] == [{"id": "j0", "status": 200}]


@story
async def test_the_reply_to_a_submission_by_message_has_an_estimate(folder):
    async with estimating(folder) as client:
        taught(client)
        groups = [[JobSpec("x", "vision", 1, duration=1e6)], [JobSpec("y", "vision", 100)]]
        clerk = CommandHandler(client.service, None, client.eta)
        ((x, y),) = [
            reply.jobs for reply in await clerk.answers([ParsedMessage("vision", "submit", groups)])
        ]
        assert (x.status, x.estimate.by) == (201, "playout")
        assert (y.status, y.estimate) == (422, None)


@story
async def test_only_the_first_jobs_of_a_large_batch_are_estimated(folder):
    async with estimating(folder) as client:
        taught(client)
        client.eta._given = {str(i): None for i in range(498)}
        jobs = [{"id": f"j{i}", "pool": "vision", "gpus": 1, "duration": 1e6} for i in range(4)]
        said = await asked(client, "POST", "/v1/jobs", {"jobs": jobs})
        assert ["estimate" in line for line in said["jobs"]] == [True, True, False, False]


@story
async def test_a_failed_playout_is_repeated_later_with_fewer_worlds(folder):
    async with estimating(folder) as client:
        taught(client)
        eta = client.eta
        eta._changed = False  # it does not look by itself
        work, eta._work = eta._work, lambda: os.kill(os.getpid(), signal.SIGKILL)
        await eta.look()
        assert (eta.pace.worlds, eta.pace.failures, eta.outlook) == (11, 1, None)
        (part,) = [each for each in client.service.parts.all() if each.name == "estimates"]
        assert not part.ok
        assert part.why.endswith("with 11 simulated worlds")
        async with client.get("/metrics") as response:
            text = await response.text()
        assert "sia_estimates_failures_total 1.0" in text
        assert "sia_estimates_worlds 11.0" in text
        assert "sia_aside_pause_seconds_count 1.0" in text
        eta._work = work
        await eta.look()
        (part,) = [each for each in client.service.parts.all() if each.name == "estimates"]
        assert (part.ok, eta.pace.worlds) == (True, 19)


@story
async def test_estimates_follow_a_change_of_the_policys_options(folder):
    """Those given before are judged apart, and running and pending jobs get new ones."""
    async with estimating(folder, policy="wfq:weights=1:zeta=0") as client:
        taught(client)
        await send(client, "x", "y", gpus=4, duration=1.0)
        await client.eta.look()
        wider = {"policy": "wfq:weights=1:zeta=0.5"}
        await asked(client, "PUT", "/v1/policy", wider)
        changed = client.service.book.setup.tuned
        await until(lambda: client.eta.heard.tuned == changed)
        assert client.eta.outlook is None
        await client.eta.look()
        given = (await asked(client, "GET", "/v1/jobs/y/eta"))["given"]
        assert len(given) >= 2  # before and after, and perhaps another as the job grows older
        await until(lambda: not client.service.book.jobs, 20)
        known = client.eta.heard.calibration
        await until(lambda: sum(t.count for t in known.apart.values()))
        said = await asked(client, "GET", "/v1/estimates")
        assert {row.get("apart", False) for row in said["rows"]} == {True, False}


@story
async def test_a_new_elastic_job_brings_the_next_simulation_forward(folder, monkeypatch):
    """It shares GPUs with the jobs that are there, so that only a simulation tells its end."""
    monkeypatch.setattr("daemon.answers.estimates.estimator.ETA_LEAST", 0.0)
    async with estimating(folder, rest=0.0, policy="wfq:weights=1:zeta=0") as client:
        taught(client)
        for name in ("first", "second"):
            await send(client, name, gpus=4, min_width=1, duration=1e6)
            await until(lambda name=name: (o := client.eta.outlook) and name in o.jobs, 20)
        assert (await asked(client, "GET", "/v1/jobs/second/eta"))["estimate"]["end"]["p50"]


@story
async def test_estimates_and_their_outcomes_survive_a_restart(folder):
    async with estimating(folder) as client:
        eta, table = client.eta, EstimateTable(client.service)
        await client.service.journal(_make_table)
        eta.store = table
        taught(client)
        await send(client, *(f"j{i}" for i in range(4)), duration=3.0)
        await until(lambda: not client.service.book.jobs, 20)
        tallies = eta.heard.calibration.tallies
        await until(lambda: sum(t.count for k, t in tallies.items() if k[0] == "end") >= 4)
        before = {key: (t.count, t.judged, t.covered) for key, t in tallies.items()}
    async with estimating(folder) as client:
        assert isinstance(client.eta.store, EstimateTable)
        tallies = client.eta.heard.calibration.tallies
        assert {key: (t.count, t.judged, t.covered) for key, t in tallies.items()} == before
        assert (await asked(client, "GET", "/v1/jobs/j1/eta"))["given"] != []


@story
async def test_without_a_table_outcomes_are_kept_in_memory_only(folder):
    async with estimating(folder) as client:
        with suppress(sqlite3.OperationalError):
            await client.service.journal(lambda journal: journal.store.run(DROP))
        kept = await estimate_store(client.service)
        assert isinstance(kept, EstimateMemory)
        moment = StatedMoment(2.0, 3.0, 2.5, (2.0, 3.0))
        many = [Given(f"j{i}", "vision", 0.0, float(i), moment) for i in range(MEMORY_KEPT + 1)]
        await kept.keep(many)
        assert [each.job for each in await kept.since(0.0)] == [each.job for each in many[1:]]


DROP = "DROP TABLE IF EXISTS estimates"


def _make_table(journal):
    """Create the table in a journal that lacks it."""
    with journal.store.transaction():
        journal.store.run(
            "CREATE TABLE IF NOT EXISTS estimates (number INTEGER PRIMARY KEY, "
            "job TEXT NOT NULL, pool TEXT NOT NULL, made REAL NOT NULL, body TEXT NOT NULL)"
        )


@story
async def test_many_submissions_do_not_cause_as_many_estimates(folder):
    async with estimating(folder) as client:
        taught(client)
        client.eta._given = {str(i): None for i in range(499)}
        await send(client, *(f"j{i}" for i in range(20)), pool="speech", duration=1e6)
        await client.eta.look()
        first = client.eta.store
        assert len(await first.of_job("j7")) == 1
        await client.eta.look()  # it has waited a power of two longer, or none
        assert len(await first.of_job("j7")) <= 12


@story
async def test_estimates_of_invisible_pools_are_hidden(folder):
    async with estimating(folder) as client:
        taught(client)
        await send(client, "x", duration=0.5)
        tallies = client.eta.heard.calibration.tallies
        await until(lambda: any(t.count for t in tallies.values()))
        body = {"name": "t", "role": "viewer", "pools": ["speech"]}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        headers = {"Authorization": f"Bearer {token}"}
        said = await asked(client, "GET", "/v1/estimates", headers=headers)
        assert said["rows"] == []
        assert (await asked(client, "GET", "/v1/estimates"))["rows"] != []


@story
async def test_an_event_after_a_long_pause_refreshes_estimates_at_once(folder):
    """Only what hearing takes is paid for by a rest: hours in which nobody came are not."""
    clock, told = [0.0], [0]

    async with estimating(folder) as client:
        service, hear = client.service, client.eta.heard.hear

        def listen(notice, record):
            told[0] = notice.seq
            return hear(notice, record)

        client.eta.heard.hear = listen
        with patch("daemon.answers.estimates.estimator.perf_counter", lambda: clock[0]):
            for name in ("first", "second", "third"):
                await send(client, name, hold=True)
                await until(lambda: told[0] == service.last_notice)
                clock[0] += 3600.0


@pytest.mark.parametrize(("age", "word"), [(50.0, False), (3600.0, True)])
def test_an_estimate_shows_its_age(monkeypatch, age, word):
    said = {"id": "x", "pool": "a", "phase": "pending", "now": 1e9, "played": 1e9 - age}
    said["estimate"] = {"start": {"p50": 1e9, "p90": None}, "end": {"p50": 1e9, "p90": None},
                        "similar": 1, "in_pool": 12, "little": ""}  # fmt: skip
    monkeypatch.setattr(Client, "get", lambda *_, **__: said)
    monkeypatch.setenv("SIA_TOKEN", "a-token-that-nobody-guesses")
    shown = CliRunner().invoke(eta, ["x"]).output
    assert "with 50 % probability" in shown
    assert ("estimated 1 h ago" in shown) is word
    assert "based on 1 ended job like it, and 12 of its pool in all\n" in shown


@pytest.mark.parametrize(
    ("little", "far"),
    [("", "not within a week"), ("no job of pool a has ended", "not known yet")],
)
def test_where_little_is_known_a_far_time_is_not_known_yet(monkeypatch, little, far):
    beyond = {"p50": None, "p90": None}
    said = {"id": "x", "pool": "a", "phase": "pending", "now": 1e9}
    said["estimate"] = {"end": beyond, "similar": 0, "in_pool": 0, "little": little}
    monkeypatch.setattr(Client, "get", lambda *_, **__: said)
    monkeypatch.setenv("SIA_TOKEN", "a-token-that-nobody-guesses")
    shown = CliRunner().invoke(eta, ["x"]).output
    assert shown.count(far) == 2
    assert little in shown


def test_a_started_job_without_gpus_has_no_estimated_end(monkeypatch):
    said = {"id": "x", "pool": "a", "phase": "starting", "now": 1e9, "started": 1e9 - 50.0}
    monkeypatch.setattr(Client, "get", lambda *_, **__: said | {"why": "it waits"})
    monkeypatch.setenv("SIA_TOKEN", "a-token-that-nobody-guesses")
    shown = CliRunner().invoke(eta, ["x"]).output
    assert "\nturn    " in shown
    assert "started" not in shown


def test_coverage_without_outcomes_is_not_shown(monkeypatch):
    nothing = dict.fromkeys(("horizon", "p90_covered", "error", "width", "pred_err"))
    row = nothing | {"pool": "a", "what": "start", "count": 0, "p50_covered": 0.0, "p50_judged": 3}
    came = row | {"what": "end", "count": 2, "p50_covered": 0.4, "p50_judged": 5}
    monkeypatch.setattr(Client, "get", lambda *_, **__: {"played": 1e9, "rows": [row, came]})
    monkeypatch.setenv("SIA_TOKEN", "a-token-that-nobody-guesses")
    shown = CliRunner().invoke(estimates).output
    assert " 0.0 %" not in shown
    assert " 40.0 % of 5 " in shown
