"""Webhooks from the command line, of daemons in processes of their own that may be killed."""

import json
import time

import pytest

from tests.daemon.cli.test_commands import CONFIG, Served, free_port
from tests.support.servers.webhooks import SECRET, receiving, secret_in, signed

pytestmark = pytest.mark.usefixtures("leaves_nothing")

HOOK = """
[[webhook]]
name = "ops"
url = "{url}"
secret_file = "secret"
events = ["submitted", "cancelled"]
refusals = 1
batch = 5
"""


def serve(folder, url, more=""):
    secret_in(folder)
    return Served(folder, CONFIG + HOOK.replace("{url}", url) + more)


def wait_for(happens, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.02)
    return found


def submit(daemon, *job_ids):
    path = daemon.config.parent / "jobs.json"
    jobs = [{"id": job_id, "pool": "vision", "gpus": 1, "hold": True} for job_id in job_ids]
    path.write_text(json.dumps(jobs))
    done = daemon("submit", "--file", path)
    assert done.returncode == 0, done.stderr


def jobs_of(receiver):
    taken = [event for got in receiver.got if got.status == 200 for event in got.events]
    return [event["job"] for event in taken if event["kind"] != "test"]


def listed(daemon):
    (hook,) = daemon.said("webhook", "list")["webhooks"]
    return hook


def test_dead_letters_are_listed_sent_again_or_dropped(tmp_path):
    with receiving(404) as ops:
        daemon = serve(tmp_path, ops.url)
        submit(daemon, *"abc")
        hook = wait_for(lambda: (h := listed(daemon))["dead"] and h)
        assert (hook["state"], hook["status"], hook["why"]) == (
            "delivering",
            404,
            "the receiver answers 404",
        )
        assert hook["to"] == f"http://127.0.0.1:{ops.port}"
        submit(daemon, *"defgh")
        wait_for(lambda: listed(daemon)["dead"] == 2)
        first, second = daemon.said("webhook", "dead", "ops")["letters"]
        assert [event["job"] for event in first["events"]] == list("abc")
        assert first["why"] == "the receiver answers 404"
        table = daemon("webhook", "dead", "ops")
        assert "the receiver answers 404" in table.stdout
        done = daemon("webhook", "test", "ops")
        assert (done.returncode, done.stdout[:26]) == (1, "ops: the receiver answers ")
        ops.answer = 200
        assert daemon("webhook", "test", "ops").stdout == "ops: delivered, answered with 200\n"
        assert ops.got[-1].events[0]["kind"] == "test"
        done = daemon("webhook", "retry", "ops", second["number"])
        assert (
            done.stdout
            == "ops: resumed, and sends 1 dead letter once more; see: sia webhook dead ops\n"
        )
        wait_for(lambda: listed(daemon)["dead"] == 1)
        assert ops.got[-1].headers["X-Sia-Delivery"] == second["delivery"]
        assert jobs_of(ops) == list("defgh")
        assert daemon("webhook", "retry", "ops", "99").returncode == 1
        assert daemon("webhook", "drop", "ops").returncode == 2
        assert daemon("webhook", "drop", "ops", first["number"]).stdout == (
            "ops: dropped 1 dead letter\n"
        )
        assert daemon.said("webhook", "dead", "ops") == {"letters": []}
        assert listed(daemon)["dead"] == 0
        assert daemon("webhook", "list").stdout.count("ops") == 1
        records = daemon.said("audit", "show")["records"]
        said = [(each["who"], each["what"], each.get("target")) for each in records]
        assert ("operator", "webhook retry", "ops") in said
        assert said[-1] == ("operator", "webhook drop", "ops")
        assert f"dead letters {first['number']}" in json.dumps(records[-1])
        done = daemon("webhook", "dead", "nobody")
        assert done.stderr == "sia: there is no webhook 'nobody'; list webhooks: sia webhook list\n"
        assert daemon.end() == 0
        for secret in (SECRET, "hidden"):
            assert secret not in daemon.log


def test_a_daemon_says_that_a_receiver_is_away_and_catches_up_when_it_is_back(tmp_path):
    port = free_port()
    daemon = serve(tmp_path, f"http://127.0.0.1:{port}/events")
    assert daemon("status").returncode == 0
    submit(daemon, "a", "b")
    wait_for(lambda: daemon("status").returncode == 1)
    (part,) = [part for part in daemon.said("status", code=1)["parts"] if not part["ok"]]
    assert (part["name"], part["why"]) == ("webhook ops", "connection refused")
    assert "UNHEALTHY" in daemon("status").stdout
    with receiving(port=port) as ops:
        wait_for(lambda: jobs_of(ops) == ["a", "b"])
        wait_for(lambda: daemon("status").returncode == 0)
    assert daemon.end() == 0
    logged = [json.loads(line) for line in daemon.log.splitlines()]
    said = [line["event"] for line in logged if "part" in line]
    assert said == ["component unhealthy", "component healthy again"]


def test_webhooks_omit_nothing_when_the_daemon_is_killed_at_any_moment(tmp_path):
    with receiving() as ops:
        daemon = serve(tmp_path, ops.url)
        names = []
        for life in range(2):
            ops.answer = 503 if life == 1 else 200
            for batch in range(4):
                job_ids = [f"{life}-{batch}-{i}" for i in range(20)]
                submit(daemon, *job_ids)
                names += job_ids
            daemon.process.kill()
            daemon.process.communicate()
            daemon.begin()
        ops.answer = 200
        wait_for(lambda: set(names) <= set(jobs_of(ops)), 60.0)
        assert daemon.end() == 0
    seen = list(dict.fromkeys(jobs_of(ops)))
    assert seen == names, "in order, and only what was sent shortly before a death comes twice"
    assert all(signed(got) for got in ops.got)
    assert len({event["seq"] for got in ops.got for event in got.events}) == len(names)
