"""What of MQTT needs no broker: the door, topics, the roster, the configuration."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.mqtt import MqttConfig, mqtt_problems
from daemon.doors.mqtt import schemas
from daemon.doors.mqtt.events import Events
from daemon.doors.mqtt.manager.roster import FORGOTTEN, NEVER, DesiredAttempts
from daemon.doors.mqtt.requests import Message, ParsedMessage, read
from daemon.doors.mqtt.schemas import StartOrder, StopOrder, Sync
from daemon.doors.mqtt.topics import Topics
from daemon.model.inputs import Cancel, Ended, Lost, Reported, Started, StartFailed, Stray
from daemon.model.job import JobSpec
from daemon.model.outputs import Notice, StartEffect
from daemon.wire.problems import ProblemError
from tests.daemon.doors.mqtt.test_mqtt import corrupt

TOPICS = Topics("main")

REAL = [
    '{"jobs": [{"gpus": 1, "id": "a", "tags": {"a": "b"}, "command": ["x"], "array": 3}]}',
    '[{"id": "b", "gpus": 2, "time_limit": 1e3, "env": {"A": "\u00e9"}}]',
    '{"do": "priority", "job": "there", "priority": 3}',
]


def opened(mail, door):
    """A letter, or why it is none."""
    try:
        return read(mail, TOPICS, "p", door), None
    except ProblemError as problem:
        return None, problem


def test_any_message_is_parsed_or_refused_with_a_reason():
    dice = random.Random(5)
    letters = 0
    for _ in range(20_000):
        door = dice.choice(["submit", "cmd", "progress"])
        mail = Message(TOPICS.pool("p", door), corrupt(dice, REAL))
        letter, problem = opened(mail, door)
        if letter is None:
            assert problem.status in (400, 413, 422)
            assert problem.details.detail
            assert problem.details.mend
        else:
            letters += 1
            assert isinstance(letter, ParsedMessage)
            assert all(spec.pool == "p" for group in letter.groups for spec in group)
    assert letters > 100


@given(st.binary(max_size=200), st.sampled_from(["submit", "cmd", "progress"]))
def test_no_bytes_raise_an_exception(payload, door):
    letter, problem = opened(Message(TOPICS.pool("p", door), payload), door)
    assert letter is not None or problem.details.mend


@given(st.text(min_size=1, max_size=20).filter(lambda name: "/" not in name))
def test_the_name_of_a_pool_is_recovered_from_its_topic(name):
    topic = TOPICS.pool(name, "submit")
    assert TOPICS.read(topic) == (name, "submit")
    assert not set("+#\0") & set(topic)
    assert topic.count("/") == TOPICS.pool("p", "submit").count("/")


@pytest.mark.parametrize(
    "topic",
    ["", "sia/v1/main/pool/p", "sia/v1/main/pool//cmd", "sia/v1/main/pool/a/b/cmd", "x",
     "sia/v1/main/pool/%70/cmd", "sia/v1/main/pool/a%2fb/cmd", "sia/v1/main/pool/%ff/cmd",
     "sia/v1/other/pool/p/cmd", "xsia/v1/main/pool/p/cmd", "sia/v1/main/pool/p/event"],
)  # fmt: skip
def test_other_topics_are_not_for_the_daemon(topic):
    assert TOPICS.read(topic) is None


def test_answers_are_sent_only_below_the_topic_of_the_pool():
    assert TOPICS.is_reply("sia/v1/main/pool/p/reply/me/1", "p")
    for topic in ("sia/v1/main/pool/p/reply/", "sia/v1/main/pool/p/reply/+", "sia/v1/main/state",
                  "sia/v1/main/pool/q/reply/me", "sia/v1/main/pool/p/submit",
                  "sia/v1/main/pool/p/reply/#"):  # fmt: skip
        assert not TOPICS.is_reply(topic, "p")


def test_correlation_data_that_are_counters_make_no_ids():
    """After a restart they would name other jobs, which would count as known."""
    mail = Message(TOPICS.pool("p", "submit"), b'{"gpus":1}', correlation=b"1")
    assert "set an id" in opened(mail, "submit")[1].details.mend
    assert opened(mail._replace(correlation=bytes(16)), "submit")[0].jobs == 1
    assert opened(mail._replace(payload=b'{"gpus":1,"id":"a"}'), "submit")[0].jobs == 1


def test_a_message_that_the_broker_does_not_keep_is_refused():
    mail = Message(TOPICS.pool("p", "cmd"), b'{"do":"cancel","job":"a"}', qos=0)
    assert "QoS 1" in opened(mail, "cmd")[1].details.mend


def test_a_command_records_who_sent_it():
    mail = Message(TOPICS.pool("p", "cmd"), b'{"do":"cancel","job":"a"}')
    assert read(mail, TOPICS, "p", "cmd").command == Cancel("a", "mqtt:p")


def test_a_wrong_command_is_refused_with_what_to_change():
    def said(line):
        return opened(Message(TOPICS.pool("p", "cmd"), line), "cmd")[1].details.detail

    assert said(b'{"do":"priority","job":"a"}') == "priority: is missing; add it"
    assert said(b'{"do":"priority","job":"a","priority":1e9}').startswith("priority: ")
    assert said(b'{"do":"cancel","job":"a","priority":3}').startswith("priority: is unknown; use")
    assert said(b'{"do":"boom","job":"a"}').startswith("do: 'boom' is invalid; use cancel,")


def test_a_progress_report_records_who_sent_it():
    line = b'{"job":"a","attempt":2,"done":0.4,"speed":1.7,"regime":3}'
    mail = Message(TOPICS.pool("p", "progress"), line)
    letter, _ = opened(mail, "progress")
    assert letter.command == Reported("a", 2, 0.4, 1.7, 3, "mqtt:p")
    for wrong in (b'{"job":"a","done":0.4}', b'{"job":"a","attempt":1,"done":NaN}',
                  b'{"job":"a","attempt":1,"done":1.5}', b'{"do":"cancel","job":"a"}'):  # fmt: skip
        assert opened(mail._replace(payload=wrong), "progress")[1].details.mend


A, KEY = StartEffect("a", 1, JobSpec("a", "p", 1), (("n", (0,)),)), ("a", 1)
OF_A = {"manager": 1, "job": "a", "attempt": 1}


def roster(*, seen=False):
    made = DesiredAttempts(3)
    made.want(A, 0.0, seen=seen)
    return made


def asked(made):
    return next(iter(made.ask(3, 1.0))).number


def test_attempts_unknown_to_the_manager_are_started_again_and_forgotten_ones_are_lost():
    made = roster()
    unknown = schemas.Unknown(number=asked(made), **OF_A)
    assert made.hear(unknown) == ([], KEY)
    assert made.hear(schemas.StartedReport(**OF_A)) == ([Started(*KEY)], None)
    assert made.hear(schemas.StartedReport(**OF_A)) == ([], None)
    assert made.hear(unknown) == ([], None)  # an answer from before it ran, come late
    again = schemas.Unknown(number=asked(made), **OF_A)
    assert made.hear(again) == ([Lost(*KEY, FORGOTTEN)], None)
    assert len(made) == 0


def test_an_answer_to_an_earlier_daemon_does_not_lose_a_job():
    before = DesiredAttempts(2)
    before.want(A, 0.0, seen=True)
    late = schemas.Unknown(number=asked(before), **OF_A)
    now = roster(seen=True)
    asked(now)
    assert now.hear(late) == ([], None)
    assert len(now) == 1


def test_an_attempt_that_should_end_and_never_began_has_ended():
    made = roster()
    made.stop(KEY, "end", 0.0)
    made.stop(KEY, "warn", 0.0)
    orders = [*made.ask(3, 1.0)]
    assert [type(order) for order in orders] == [Sync, StopOrder]
    assert orders[1].kind == "end"
    assert made.hear(schemas.Unknown(number=orders[0].number, **OF_A)) == (
        [Ended(*KEY, why=NEVER)],
        None,
    )


def test_reports_of_unknown_attempts_change_nothing_but_cause_an_order_to_end():
    made = DesiredAttempts(1)
    for kind in (schemas.StartedReport, schemas.EndedReport, schemas.LostReport, schemas.Failed):
        assert made.hear(kind(**OF_A)) == ([], None)
    assert made.hear(schemas.UnexpectedReport(**OF_A)) == ([Stray(*KEY)], None)
    assert made.hear(schemas.Synced(manager=1, number=1)) == ([], None)


def test_each_end_is_reported_once():
    for report, seen in (
        (schemas.EndedReport(code=3, why="w", **OF_A), Ended(*KEY, 3, None, "w")),
        (schemas.LostReport(why="w", **OF_A), Lost(*KEY, "w")),
        (schemas.Failed(why="w", **OF_A), StartFailed(*KEY, "w")),
    ):
        made = roster()
        assert made.hear(report) == ([seen], None)
        assert made.hear(report) == ([], None)


def test_queries_about_many_jobs_are_split():
    made = DesiredAttempts(1)
    for i in range(1200):
        made.want(StartEffect(f"j{i}", 1, JobSpec(f"j{i}", "p", 1), ()), 0.0)
    parts = [*made.ask(5, 1.0)]
    assert [len(part.jobs) for part in parts] == [500, 500, 200]
    assert [part.more for part in parts] == [True, True, False]
    assert {part.epoch for part in parts} == {5}
    order = made.start(("j0", 1), 5, {"SIA_REPORT_URL": "there"})
    assert isinstance(order, StartOrder)
    assert order.env == {"SIA_REPORT_URL": "there"}
    assert made.start(("j0", 2), 5, {}) is None
    assert len(made.overdue(20.0, 10.0)) == 1200
    assert not made.overdue(5.0, 10.0)


def test_only_an_attempt_that_ends_slowly_is_asked_about():
    made = DesiredAttempts(1)
    for i in range(20_000):
        made.want(StartEffect(f"j{i}", 1, JobSpec(f"j{i}", "p", 1), ()), 0.0, seen=True)
    made.stop(("j7", 1), "end", 100.0)
    assert not made.overdue(105.0, 10.0)  # it was told just now
    late = made.overdue(111.0, 10.0)
    question, stop = made.ask(5, 111.0, late)
    assert question.some
    assert [run.job for run in question.jobs] == ["j7"]
    assert stop == StopOrder(epoch=5, job="j7", attempt=1, kind="end")
    assert not made.overdue(112.0, 10.0)


def test_messages_received_while_orders_are_sent_break_nothing():
    made = roster()
    made.stop(KEY, "end", 0.0)
    orders = iter(made.ask(3, 1.0))
    next(orders)
    made.want(StartEffect("b", 1, JobSpec("b", "p", 1), ()), 1.0)
    assert [order.job for order in orders] == ["a"]


@pytest.mark.parametrize("host", ["bus..example", "." * 3, "x" * 70 + ".example"])
def test_an_invalid_host_name_is_refused(host):
    assert "mqtt.host" in "".join(mqtt_problems(MqttConfig(host=host)))


def test_all_errors_of_the_bus_section_are_reported_at_once(tmp_path):
    far = MqttConfig(host="bus.example", key=str(tmp_path / "no"), password_file=str(tmp_path))
    said = "\n".join(mqtt_problems(far))
    for words in ("set tls = true", "set user and pas", "mqtt.cert: ",
                  "mqtt.user: password_file", "Is a directory", "No such file"):  # fmt: skip
        assert words in said
    assert [*mqtt_problems(MqttConfig())] == []
    own = [*mqtt_problems(MqttConfig(broker="embedded", host="::", user="x"))]
    assert len(own) == 2
    assert "use 127.0.0.1" in own[0]
    (tmp_path / "ca").write_text("no PEM")
    (wrong,) = mqtt_problems(MqttConfig(tls=True, ca=str(tmp_path / "ca")))
    assert "cannot load ca, cert and key" in wrong


def test_the_configuration_never_shows_a_password(tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    config = MqttConfig(user="sia", password_file="secret").under(tmp_path)
    assert config.password() == "hunter2"
    assert "hunter2" not in repr(config)


class Wire:
    """A link to a broker that takes all, and the daemon behind it."""

    def __init__(self, notices):
        self._notices, self.sent, self.noted = notices, [], {"mqtt:main:cursor": "0"}
        self.up, self.notes, self.told = asyncio.Event(), self, 0
        self.up.set()
        self.fence = SimpleNamespace(holds=lambda: True)

    async def notices(self, after):
        for notice in self._notices[after:]:
            yield notice

    async def read(self, prefix):
        return {key: value for key, value in self.noted.items() if key.startswith(prefix)}

    async def write(self, changes):
        self.noted |= changes

    async def send(self, topic, payload):
        self.sent.append((topic, json.loads(payload)))
        through = asyncio.get_running_loop().create_future()
        through.set_result(0)
        return through


def test_a_moved_loan_is_reported_to_the_old_and_the_new_lender():
    loan = {"gpus": 2, "to": "speech"}
    moved = {**loan, "previous": "vision"}
    notices = [
        Notice(1, 0.0, "loan_opened", "j", "vision", data=loan),
        Notice(2, 0.0, "loan_moved", "j", "other", data=moved),
        Notice(3, 0.0, "loan_moved", "j", "speech", data={**moved, "previous": "other"}),
    ]
    wire = Wire(notices)
    asyncio.run(asyncio.wait_for(Events(wire, wire, TOPICS).run(), 60))
    told = [(topic.split("/")[-2], event["seq"], event["kind"]) for topic, event in wire.sent]
    assert told == [
        ("vision", 1, "loan_opened"),
        ("vision", 2, "loan_moved"),
        ("other", 2, "loan_moved"),
        ("other", 3, "loan_closed"),
    ]
    assert wire.sent[1][1] == wire.sent[2][1]
