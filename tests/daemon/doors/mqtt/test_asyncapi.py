"""The AsyncAPI document: each topic that the daemon is on, and messages that are as it says."""

import re

import msgspec
from click.testing import CliRunner
from jsonschema_rs import Draft202012Validator

from daemon.cli.serve import asyncapi
from daemon.config.mqtt import MqttConfig
from daemon.doors.mqtt import schemas
from daemon.doors.mqtt.asyncapi import CHANNELS, document
from daemon.doors.mqtt.topics import DOORS, Topics
from daemon.model.access import Rule
from daemon.wire.jobs import BatchLine, EventView
from tests.support.servers.managers import EXAMPLES

TOPICS = Topics("main")

PEOPLE = (Rule.REPORT, Rule.SUBMIT)
"""Rules of the topics on which a pool's people and jobs write."""


def channels_of(topic):
    """Names of channels whose address fits a topic."""
    return [
        c.name
        for c in CHANNELS
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(c.topic)), topic)
    ]


def test_each_topic_of_the_daemon_is_described_once():
    said = {
        "submit": TOPICS.pool("a/b", "submit"),
        "cmd": TOPICS.pool("a", "cmd"),
        "progress": TOPICS.pool("a", "progress"),
        "reply": TOPICS.pool("a", "reply/me"),
        "event": TOPICS.pool("a", "event"),
        "poolState": TOPICS.pool("a", "state"),
        "state": TOPICS.state,
        "order": TOPICS.manager("order"),
        "report": TOPICS.manager("report"),
        "managerState": TOPICS.manager("state"),
    }
    assert {name: channels_of(topic) for name, topic in said.items()} == {
        name: [name] for name in said
    }
    assert set(said) == {channel.name for channel in CHANNELS}


def test_the_daemon_listens_to_no_topic_without_a_rule():
    doors = {name for channel in DOORS for name in channels_of(TOPICS.pool("a", channel))}
    assert doors == {c.name for c in CHANNELS if c.action == "receive" and c.rule in PEOPLE}
    assert all(isinstance(channel.rule, Rule) for channel in CHANNELS)


def test_the_example_acl_permits_exactly_what_the_rules_say():
    """A pool's clients may publish what the daemon receives, and subscribe to what it sends."""
    said, user = {}, None
    for line in (EXAMPLES / "acl").read_text().splitlines():
        words = line.split()
        if words[:1] == ["user"]:
            user = said.setdefault(words[1], set())
        elif words[:1] == ["topic"]:
            topic = words[2].replace("reply/#", "reply/me")
            user |= {(how, topic) for how in ("read", "write") if how in words[1]}
    jobs = said.pop("jobs-of-a")
    assert jobs == {("write", TOPICS.pool("a", "progress"))}
    assert said.pop("sia") == {("read", "sia/v1/main/#"), ("write", "sia/v1/main/#")}
    for name, granted in said.items():
        people = name != "manager"
        rules = (*PEOPLE, Rule.VIEW) if people else (Rule.OPERATE,)
        wanted = {
            ("write" if c.action == "receive" else "read",
             c.topic.format(cluster="main", pool=name, to="me"))
            for c in CHANNELS if c.rule in rules
        }  # fmt: skip
        if not people:  # it looks whether another one has come
            wanted.add(("read", TOPICS.manager("state")))
        assert granted == wanted


def test_all_references_resolve():
    made = document(MqttConfig(host="bus", tls=True))
    assert made["servers"]["broker"] == {
        "host": "bus:8883", "protocol": "secure-mqtt", "protocolVersion": "5",
    }  # fmt: skip
    for ref in re.findall(r'"\$ref":"#/([^"]+)"', msgspec.json.encode(made).decode()):
        at = made
        for step in ref.split("/"):
            at = at[step]


REAL = {
    "PoolJob": schemas.PoolJob(gpus=1, id="a", command=("x",), array=3),
    "PoolJobList": [schemas.PoolJob(gpus=1, id="a")],
    "PoolJobs": schemas.PoolJobs([schemas.PoolJob(gpus=1, id="a")]),
    "PriorityCommand": schemas.PriorityCommand("a", 5),
    "CancelCommand": schemas.CancelCommand("a"),
    "Reply": schemas.Reply(200, [BatchLine("a", 409, "no", "mend")]),
    "EventView": EventView(3, 5.0, "started", "a", "vision", data={"nodes": (("n1", (0, 1)),)}),
    "StartOrder": schemas.StartOrder(
        epoch=1, job="a", attempt=1, pool="p", gpus=1, nodes={"n": [1]}
    ),
    "Sync": schemas.Sync(epoch=1, number=4, jobs=[schemas.AttemptRef("a", 1)], more=True),
    "EndedReport": schemas.EndedReport(manager=7, job="a", attempt=1, code=0),
    "Unknown": schemas.Unknown(manager=7, job="a", attempt=1, number=3),
    "ManagerState": schemas.ManagerState(7),
    "Presence": "online",
}


def test_messages_match_the_document_and_invalid_ones_do_not():
    made = document()
    for name, message in REAL.items():
        schema = {
            **made["components"]["messages"][name]["payload"],
            "components": made["components"],
        }
        validator = Draft202012Validator(schema)
        body = msgspec.json.decode(msgspec.json.encode(message))
        assert validator.is_valid(body), name
        assert not validator.is_valid({"do": "shoot"} if name != "Presence" else "away")


def test_the_command_prints_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(asyncapi)
    assert said.exit_code == 0, said.output
    assert msgspec.json.decode(said.output) == msgspec.json.decode(msgspec.json.encode(document()))
