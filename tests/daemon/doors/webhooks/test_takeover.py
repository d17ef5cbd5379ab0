"""Webhooks of two daemons on one PostgreSQL: whoever leads goes on where the other one was."""

from tests.support.daemons.pair import LONG, Member, led_by, until
from tests.support.servers.webhooks import receiving, secret_in, signed

HOOK = """
[[webhook]]
name = "ops"
url = "{url}"
secret_file = "secret"
events = ["submitted"]
"""


def member(folder, name, url, hook):
    world = folder / "world"
    world.mkdir(exist_ok=True)
    made = Member(folder, name, world, url, None)
    secret_in(made.folder)
    with made.config.open("a") as config:
        config.write(HOOK.format(url=hook))
    return made


def submit(leader, *names):
    for name in names:
        job = {"id": name, "pool": "a", "gpus": 1, "hold": True}
        until(lambda job=job: leader.ask("/v1/jobs", job)[0] in {200, 201}, LONG, "it is taken")


def heard(receiver):
    """Jobs in the order in which they were heard of first."""
    taken = [event for got in receiver.got if got.status == 200 for event in got.events]
    return list(dict.fromkeys(event["job"] for event in taken))


def is_well(leader):
    status, said = leader.ask("/readyz")
    return status == 200 and "parts" not in said


def test_webhooks_omit_nothing_after_a_killed_leader_and_a_database_outage(tmp_path, postgres):
    url = postgres.database("hooks")
    with receiving() as ops:
        members = [member(tmp_path, name, url, ops.url) for name in "AB"]
        for each in members:
            each.start()
        try:
            leader, other = led_by(members)
            names = [f"first{i}" for i in range(20)]
            submit(leader, *names)
            leader.process.kill()
            until(other.leads, LONG, "taken over")
            names += (more := [f"second{i}" for i in range(20)])
            submit(other, *more)
            until(lambda: heard(ops) == names, LONG, "all were heard of")

            ops.answer = 503
            names += (more := [f"third{i}" for i in range(20)])
            submit(other, *more)
            postgres.stop()
            until(lambda: other.ask("/readyz")[0] == 503, LONG, "the leader says so")
            ops.answer = 200
            postgres.start()
            until(lambda: heard(ops) == names, LONG, "caught up")
            until(lambda: is_well(other), LONG, "all is well")
        finally:
            for each in members:
                each.end()
            if postgres.process is None:
                postgres.start()
    assert all(signed(got) for got in ops.got)
