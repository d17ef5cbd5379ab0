"""The daemon on a bus: jobs come in and are durable before they are acknowledged; events go out."""

import asyncio
import json
import random
import signal
import time

import aiomqtt

from daemon.config.config import PoolConfig
from daemon.model.inputs import Submit
from daemon.model.job import JobPhase, JobSpec
from daemon.model.setup import Grant
from daemon.process.serve import serving
from tests.daemon.service.test_service import break_down
from tests.support.budget import budget
from tests.support.daemons.daemons import StillClock, until
from tests.support.servers.mqtt import daemon_on, is_well, on_bus, part, peer

ROOT = "sia/v1/main"
POOL = f"{ROOT}/pool/vision"
ME = f"{POOL}/reply/me"

JOB = {"id": "a", "gpus": 2, "duration": 30}
LONG = {"gpus": 1, "duration": 1e6}

KEY = b"\0\xff" * 8
"""Correlation data, as long as a UUID."""


def story(tell):
    """Run a coroutine function as a test, with a folder and a broker."""

    def test(tmp_path, broker):
        asyncio.run(asyncio.wait_for(tell(tmp_path, broker), 300))

    test.__name__ = tell.__name__
    return test


def kinds(one, pool="vision"):
    return [(event["kind"], event.get("job", "")) for event in one.on(f"/pool/{pool}/event")]


def refusals(one):
    return [event for event in one.on("/event") if event["kind"] == "refused"]


async def answered(one, topic, body, **more):
    """The reply to a message."""
    before = len(one.on("/reply/me"))
    await one.say(topic, body, reply=ME, **more)
    await until(lambda: len(one.on("/reply/me")) > before)
    return one.on("/reply/me")[-1]


@story
async def test_requests_of_a_job_arrive_over_mqtt_and_the_reply_names_ignored_ones(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, "sia/#") as one:
        late = {"id": "late", **LONG, "deadline": 60, "preemptible": "restart"}
        (line,) = (await answered(one, f"{POOL}/submit", late))["jobs"]
        assert (line["status"], len(line["notes"])) == (201, 3)
        assert line["notes"][0] == "the deadline is missed: it was 1970-01-01 00:01:00 UTC"
        spec = service.book.job("late").spec
        assert (spec.deadline, spec.preemptible) == (60.0, "restart")
        rises = {"id": "rises", **LONG, "demand": [[1, 50], [2, 60]]}
        (line,) = (await answered(one, f"{POOL}/submit", rises))["jobs"]
        assert (line["status"], line["detail"]) == (
            422, "demand rises: 60 seconds on 2 GPUs, 50 on 1",
        )  # fmt: skip


@story
async def test_what_a_site_grants_bounds_jobs_over_mqtt_too(folder, broker):
    grants = (Grant("ann", "vision", max_value=9.0, never_jobs=1, extra_budget=2.0, gpu_hours=3.0),)
    async with (
        daemon_on(folder, broker.port, grants=grants),
        peer(broker.port, "sia/#") as one,
    ):
        due = {"deadline": 4e9, "estimate": 7200}
        jobs = [
            {"value": 10}, {"value": 9}, {"preemptible": "never"}, {"preemptible": "never"},
            {"budget": 3}, {"budget": 1.5}, due, due, {**due, "user": "bob"},
        ]  # fmt: skip
        jobs = [{"id": f"j{i}", "user": "ann", **LONG, **more} for i, more in enumerate(jobs)]
        said = (await answered(one, f"{POOL}/submit", jobs))["jobs"]
        assert [line["status"] for line in said] == [403, 201, 201, 403, 201, 403, 201, 403, 201]
        assert [line["detail"].partition(" may ")[2] for line in said if line["status"] == 403] == [
            "give a job a value of at most 9 (got 10)",
            "have 1 job that must not be stopped (preemptible = never), has 1 and would get 1 more",
            "have 2 of budget beyond 1 for each job, has 2 and would get 0.5 more",
            "have 3 GPU-hours in jobs with a deadline, has 2 and would get 2 more",
        ]
        said = await answered(one, f"{POOL}/submit", {"id": "odd", **LONG, "mode": "gsn"})
        assert said["status"] == 422
        assert said["detail"].startswith("mode 'gsn' is not a known mode; use one of accordion"), (
            said
        )


@story
async def test_a_job_submitted_over_mqtt_is_answered_runs_and_is_reported(folder, broker):
    async with daemon_on(folder, broker.port), peer(broker.port, "sia/#") as one:
        await one.say(f"{POOL}/submit", JOB, reply=ME, correlation=b"7")
        await until(lambda: ("ended", "a") in kinds(one))
        await until(lambda: one.on("/reply/me"))
        assert one.on("/reply/me") == [{"status": 200, "jobs": [{"id": "a", "status": 201}]}]
        assert next(p for t, _, p in one.heard if t.endswith("/me")).CorrelationData == b"7"
        assert [kind for kind, job in kinds(one) if job == "a"] == [
            "submitted", "started", "running", "ended",
        ]  # fmt: skip
        numbers = [event["seq"] for event in one.on("/event")]
        assert numbers == sorted(set(numbers))
        assert one.on("/event")[0]["data"]["by"] == "mqtt:vision"
        await until(lambda: one.on(f"{POOL}/state")[-1]["running"] == 0)
        assert one.on(f"{POOL}/state")[-1]["quota"] == 8


@story
async def test_a_repeated_job_counts_once_and_each_job_of_a_list_is_answered(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, "sia/#") as one:
        jobs = [{"id": "x", **LONG}, {"id": "big", "gpus": 99}, {"id": "arr", "array": 3, **LONG}]
        for body, status in ((jobs, 201), ({"jobs": jobs}, 200)):
            said = await answered(one, f"{POOL}/submit", body)
            assert [line["status"] for line in said["jobs"]] == [status, 422, status]
        assert len(service.book.jobs) == 4
        await until(lambda: len(refusals(one)) == 2)
        why, again = refusals(one)
        assert why["job"] == again["job"] == "big"
        assert why["seq"] == 0
        assert "99 GPUs exceed the quota" in why["data"]["why"]
        assert why["data"]["mend"]
        await one.say(f"{POOL}/submit", jobs[0])
        await until(lambda: ("known", "x") in kinds(one))


@story
async def test_correlation_data_becomes_the_id_of_a_job_without_one(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, "sia/#") as one:
        said = await answered(one, f"{POOL}/submit", [LONG, LONG], correlation=KEY)
        again = await answered(one, f"{POOL}/submit", [LONG, LONG], correlation=KEY)
        ids = [line["id"] for line in said["jobs"]]
        assert [line["id"] for line in again["jobs"]] == ids
        assert len(set(ids)) == 2
        assert set(service.book.jobs) == set(ids)
        said = await answered(one, f"{POOL}/submit", LONG)
        assert "the job has no id" in said["detail"]
        assert len(service.book.jobs) == 2


@story
async def test_commands_change_jobs_of_their_own_pool_and_no_others(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, "sia/#") as one:
        other = f"{ROOT}/pool/speech"
        await answered(one, f"{POOL}/submit", [{"id": "run", **LONG}, {"id": "held", **LONG}])
        await one.say(f"{other}/submit", {"id": "theirs", **LONG})
        await until(lambda: "theirs" in service.book.jobs)
        for job in ("theirs", "nobodys", "run.1"):
            said = await answered(one, f"{POOL}/cmd", {"do": "cancel", "job": job})
            assert said["jobs"][0]["status"] == 404
        assert service.book.job("theirs").phase is not JobPhase.CANCELLED
        await answered(
            one, f"{POOL}/submit", {"id": "wait", "gpus": 8, "duration": 9, "hold": True}
        )
        for do, more in (("priority", {"priority": 7}), ("release", {}), ("cancel", {})):
            said = await answered(one, f"{POOL}/cmd", {"do": do, "job": "wait", **more})
            assert said["jobs"] == [{"id": "wait", "status": 200}], said
        assert service.book.job("wait").phase is JobPhase.CANCELLED
        said = await answered(one, f"{POOL}/cmd", {"do": "priority", "job": "run", "priority": 1})
        assert said["jobs"][0]["status"] == 409


@story
async def test_a_cancel_after_its_submission_counts_and_one_before_it_is_refused(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, "sia/#") as one:
        cancel = {"do": "cancel", "job": "a"}
        said = await answered(one, f"{POOL}/cmd", cancel)
        assert said["jobs"][0]["status"] == 404
        assert "send the command after" in said["jobs"][0]["mend"]
        for _ in range(3):
            await one.say(f"{POOL}/submit", {**JOB, **LONG})
            await one.say(f"{POOL}/cmd", cancel)
        await until(lambda: "a" in service.book.ended)
        await answered(one, f"{POOL}/submit", {**JOB, **LONG})  # late: it stays cancelled
        assert service.book.job("a").phase is JobPhase.CANCELLED


@story
async def test_an_invalid_message_is_refused_with_a_reason_and_changes_nothing(folder, broker):
    stored = f"{POOL}/submit"
    async with peer(broker.port) as one:
        await one.say(stored, {"id": "old", **LONG}, retain=True)
    async with peer(broker.port, "sia/#") as one, daemon_on(folder, broker.port) as service:
        await until(lambda: [r for r in refusals(one) if "retained" in r["data"]["why"]])
        for body, words in (
            (b"", "truncated"),
            (b"{", "property name"),
            (b"nonsense", "invalid JSON at character 0"),
            (b'{"id":"a\x00","gpus":1}', ""),
            (b'{"id":"a","gpus":1,"name":"\\u0000"}', "control characters"),
            (b'{"id":"a","gpus":1,"name":"\\ud800"}', ""),
            (b"\xed\xa0\x80", "not UTF-8"),
            (b"[" * 60_000, ""),
            (b'{"a":' * 20_000, ""),
            (b'{"id":"a","gpus":' + b"9" * 60_000 + b"}", "gpus: '9999"),
            ({"id": "a", "gpus": 1, "pool": "speech"}, "'speech'"),
            ({"id": "a", "gpus": 1, "bogus": 1}, "bogus"),
            ([], "jobs"),
            ([{"id": f"a{i}", "gpus": 1, "array": 10_000} for i in range(2)], "10,000 jobs"),
            (b" " * 70_000, "65,536"),
        ):
            said = await answered(one, stored, body)
            assert said["status"] >= 400, (body, said)
            assert words in said["detail"], said
            assert said["mend"]
        said = await answered(one, f"{POOL}/cmd", {"do": "shoot", "job": "a"})
        assert said["status"] == 422
        said = await answered(one, stored, {"id": "hasty", "gpus": 1, "time_limit": "1m"})
        assert said["detail"] == "time_limit: '1m' is invalid; use a number, in seconds"
        await until(lambda: refusals(one)[-1].get("job") == "hasty")
        await one.say(stored, JOB, reply=f"{ROOT}/pool/speech/submit")
        await until(lambda: "response topic" in refusals(one)[-1]["data"]["why"])
        await one.say(stored, {"id": "kept", **LONG}, retain=True)
        await until(lambda: "retained" in refusals(one)[-1]["data"]["why"])
        said = await answered(one, stored, {"id": "flown", **LONG}, qos=0)
        assert "QoS 1" in said["mend"]
        await one.say(f"{ROOT}/pool/%76ision/submit", {"id": "spelt", **LONG})
        await one.say(f"{ROOT}/pool/nobodys/submit", JOB)
        await one.say(f"{ROOT}/pool//submit", JOB)
        await one.say(f"{ROOT}/pool/a/b/submit", JOB)
        assert (await answered(one, f"{POOL}/submit", JOB))["jobs"][0]["status"] == 201
        assert set(service.book.jobs) | set(service.book.ended) == {"a"}
        assert not one.on("/pool/speech/event")


@story
async def test_random_and_corrupt_payloads_change_nothing(folder, broker):
    number, dice = budget(ci=2_000, soak=100_000), random.Random(8)
    real = [
        json.dumps({"jobs": [{"gpus": 1, "tags": {"a": "b"}, "command": ["x"], "array": 3}]}),
        json.dumps({"do": "priority", "job": "there", "priority": 3}),
        json.dumps([{"gpus": 2, "time_limit": 1e3, "env": {"A": "\u00e9"}, "warn": 3.5}]),
    ]
    async with (
        daemon_on(folder, broker.port) as service,
        peer(broker.port, f"{POOL}/reply/#") as one,
    ):
        await answered(one, f"{POOL}/submit", {"id": "there", **LONG})
        await until(lambda: service.book.job("there").phase is JobPhase.RUNNING)
        before, well = service.book.jobs["there"], part(service, "mqtt")
        waiting = set()
        for i in range(number):
            topic = f"{POOL}/{dice.choice(['submit', 'cmd'])}"
            task = asyncio.create_task(one.say(topic, corrupt(dice, real)))
            waiting.add(task)
            if len(waiting) >= 200 or i == number - 1:
                await asyncio.gather(*waiting)
                waiting.clear()
        said = await answered(one, f"{POOL}/cmd", {"do": "cancel", "job": "theirs"})
        assert said["jobs"][0]["status"] == 404
        assert list(service.book.jobs) == ["there"]
        assert service.book.jobs["there"] == before
        assert part(service, "mqtt") == well


def corrupt(dice, real):
    """Return random bytes that no command can accept: they name no known job and no priority."""
    if dice.random() < 0.4:
        return dice.randbytes(dice.choice([0, 1, 5, 50, 500, 5000]))
    text = bytearray(dice.choice(real), "utf-8")
    for _ in range(dice.randrange(6)):
        at = dice.randrange(len(text))
        match dice.randrange(4):
            case 0:
                text[at] = dice.randrange(256)
            case 1:
                del text[at:]
                text += b" "
            case 2:
                text[at:at] = dice.randbytes(3)
            case 3:
                text[at:at] = dice.choice([b"[" * 50, b"1e999", b"\\ud800", b"null", b'"id":7,'])
    return bytes(text)


@story
async def test_a_job_reports_progress_and_reports_that_come_too_soon_are_not_repeated(
    folder, broker
):
    async with (
        daemon_on(folder, broker.port) as service,
        peer(broker.port, f"{POOL}/reply/#") as one,
    ):
        await answered(one, f"{POOL}/submit", {"id": "there", **LONG})
        await until(lambda: service.book.job("there").phase is JobPhase.RUNNING)
        service.clock = StillClock(service.clock.now())
        report = {"job": "there", "attempt": 1, "done": 0.25, "speed": 2.0}
        for job, status in (("there", 200), ("there", 429), ("theirs", 404)):
            said = await answered(one, f"{POOL}/progress", {**report, "job": job})
            assert said["jobs"][0]["status"] == status
        assert service.book.jobs["there"].progress.speed == 2.0


@story
async def test_messages_are_not_acknowledged_while_the_journal_cannot_be_written(folder, broker):
    async with daemon_on(folder, broker.port) as service, peer(broker.port, "sia/#") as one:
        heal = break_down(service._writer.journal)
        await one.say(f"{POOL}/submit", JOB, reply=ME)
        await until(lambda: not service.ready)
        await one.say(f"{POOL}/submit", {"id": "b", **LONG}, reply=ME)
        assert not one.on("/reply/me")
        heal()
        await until(lambda: len(one.on("/reply/me")) == 2)
        assert {line["id"] for said in one.on("/reply/me") for line in said["jobs"]} == {"a", "b"}
        assert service.book.job("a") is not None


@story
async def test_messages_sent_while_the_daemon_was_down_are_processed_and_no_event_is_lost(
    folder, broker
):
    config = on_bus(folder, broker.port)
    async with peer(broker.port, "sia/#") as one:
        for turn in range(3):
            await one.say(f"{POOL}/submit", {**JOB, "id": f"j{turn}"})
            async with serving(config) as (daemon, _):
                if turn == 0:  # the broker knows of no session before
                    await until(lambda: is_well(daemon, "mqtt"))
                    await one.say(f"{POOL}/submit", {**JOB, "id": f"j{turn}"})
                await until(lambda: ("started", f"j{turn}") in kinds(one))  # noqa: B023
                told = daemon.service.last_notice
        async with serving(config):
            await until(lambda: ("ended", "j2") in kinds(one))
        numbers = [event["seq"] for event in one.on("/event") if event["seq"]]
        assert set(range(1, told + 1)) <= set(numbers)
        heard = dict.fromkeys((e["seq"], e["kind"], e.get("job", "")) for e in one.on("/event"))
        assert len(heard) == len(set(numbers)) + len([k for k in heard if not k[0]])


@story
async def test_a_broker_that_returns_receives_what_happened_meanwhile(folder, broker):
    away = budget(ci=1.0, soak=60.0)
    async with daemon_on(folder, broker.port) as service:
        async with peer(broker.port, f"{ROOT}/state", f"{POOL}/state") as one:
            await until(lambda: one.retained.get(f"{ROOT}/state") == b"online")
        before = service.last_notice
        broker.stop(signal.SIGKILL)
        await until(lambda: not part(service, "mqtt").ok)
        await service.submit(
            [Submit(JobSpec(f"j{i}", "vision", 1, duration=5.0)) for i in range(50)]
        )
        await asyncio.sleep(away)
        assert "mqtt" in [each.name for each in service.parts.all() if not each.ok]
        broker.start()
        async with peer(broker.port, "sia/#") as one:
            began = time.monotonic()
            await until(lambda: part(service, "mqtt").ok)
            await until(lambda: len([k for k in kinds(one) if k[0] == "ended"]) >= 50)
            assert time.monotonic() - began < 20
            numbers = [event["seq"] for event in one.on("/event")]
            assert numbers == list(range(before + 1, service.last_notice + 1))
            await until(lambda: one.on(f"{POOL}/state"))
            await until(lambda: (f"{ROOT}/state", b"online") in [h[:2] for h in one.heard])


@story
async def test_the_last_will_and_a_clean_stop_both_report_that_the_daemon_is_gone(folder, broker):
    def state(one):
        return [payload for topic, payload, _ in one.heard if topic == f"{ROOT}/state"]

    async with peer(broker.port, f"{ROOT}/state") as one:
        async with daemon_on(folder, broker.port):
            await until(lambda: state(one) == [b"online"])
        await until(lambda: state(one)[-1] == b"offline")
        async with daemon_on(folder, broker.port) as service:
            await until(lambda: state(one)[-1] == b"online")
            async with aiomqtt.Client("127.0.0.1", broker.port, identifier="sia-main"):
                await until(lambda: "connects as 'sia-main'" in part(service, "mqtt").mend)
                await until(lambda: b"offline" in state(one)[2:])
            await until(lambda: part(service, "mqtt").ok)
            await until(lambda: state(one)[-1] == b"online")


@story
async def test_pools_whose_names_are_invalid_in_topics_have_encoded_topics(folder, broker):
    pools = (PoolConfig("r&d #1+%", 4), PoolConfig("vision", 4))
    topic = f"{ROOT}/pool/r&d %231%2B%25"
    async with (
        daemon_on(folder, broker.port, pools=pools) as service,
        peer(broker.port, "sia/#") as one,
    ):
        await one.say(f"{topic}/submit", JOB)
        await until(lambda: ("ended", "a") in kinds(one, "r&d %231%2B%25"))
        assert service.book.job("a").spec.pool == "r&d #1+%"
    async with daemon_on(folder, broker.port), peer(broker.port, "sia/#") as one:
        await until(lambda: f"{POOL}/state" in one.retained)
        await until(lambda: f"{topic}/state" not in one.retained)


@story
async def test_a_pool_with_too_many_jobs_is_refused_with_the_reason(folder, broker):
    pools = (PoolConfig("vision", 8, max_waiting=3),)
    async with (
        daemon_on(folder, broker.port, pools=pools) as service,
        peer(broker.port, "sia/#") as one,
    ):
        held = {"gpus": 1, "hold": True}
        jobs = [{"id": f"h{i}", **held} for i in range(4)]
        said = await answered(one, f"{POOL}/submit", jobs)
        assert [line["status"] for line in said["jobs"]] == [201, 201, 201, 429]
        await until(lambda: refusals(one))
        assert refusals(one)[0]["data"]["mend"]
        said = await answered(one, f"{POOL}/submit", jobs[0])
        assert said["jobs"][0]["status"] == 200  # it is known, and no new one
        assert len(service.book.jobs) == 3
