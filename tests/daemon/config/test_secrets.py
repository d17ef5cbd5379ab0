"""Secrets are nowhere to be seen: not in the log, in errors, events, the audit, or answers."""

import json
from http.client import HTTPConnection

import pytest

from tests.daemon.cli.test_commands import CONFIG, Served

pytestmark = pytest.mark.usefixtures("leaves_nothing")

ENV, COMMAND = "hush-of-the-environment", "--key=hush-of-the-command"


class Asking:
    """Requests to a daemon; all answers are kept."""

    def __init__(self, address, token):
        self.address, self.token, self.answers = address, token, {}

    def __call__(self, method, path, body=None, token=None):
        connection = HTTPConnection(self.address, timeout=20)
        headers = {"Authorization": f"Bearer {token or self.token}"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        self.answers[method, path, response.status] = text + str(response.headers)
        return json.loads(text) if text.startswith("{") else {}


@pytest.fixture
def daemon(tmp_path):
    served = Served(tmp_path, CONFIG.replace("[daemon]", '[daemon]\nlog_level = "debug"'))
    yield served
    if served.process.poll() is None:
        served.end()


def test_secrets_appear_in_no_output(daemon, tmp_path):
    machine = (tmp_path / "state" / "token").read_text().strip()
    ask = Asking(daemon.first.split()[2].removeprefix("http://").rstrip(";"), machine)
    made = [
        ask("POST", "/v1/tokens", {"name": name, "role": "submitter", "pools": ["vision"]})["token"]
        for name in ("ann", "bob")
    ]
    ask.answers.clear()  # those were told their tokens
    job = {"pool": "vision", "gpus": 1, "duration": 1e6, "env": {"KEY": ENV}, "command": [COMMAND]}
    ask("POST", "/v1/jobs", {**job, "id": "a"}, made[0])
    ask("POST", "/v1/jobs", {**job, "id": "a", "gpus": 2}, made[0])
    ask("POST", "/v1/jobs", {"jobs": [{**job, "id": "b"}, {**job, "id": "c", "duration": 1.0}]})
    for wrong in (
        {**job, "env": {"KEY": ENV, "N": 5}},
        {**job, "env": [ENV]},
        {**job, "env": {ENV + "=": "x"}},
        {**job, "pool": "speech"},
        {**job, "gpus": 10**6},
    ):
        ask("POST", "/v1/jobs", wrong, made[0])
        ask("POST", "/v1/jobs", {"jobs": [wrong]}, made[0])
    ask("PUT", "/v1/lending", {"on": False}, made[1])
    ask("DELETE", "/v1/tokens/bob")
    ask("GET", "/v1/jobs", token=made[1])
    ask("GET", "/v1/jobs", token=made[0][:-1])
    ask("DELETE", "/v1/jobs/b")
    document = ask("GET", "/v1/openapi.json")
    for path, operations in document["paths"].items():
        if "get" in operations and "{" not in path:
            ask("GET", path)
    for path in ("/v1/events?limit=1000", "/v1/audit?limit=1000", "/v1/history?limit=1000"):
        ask("GET", path)
    assert len(ask.answers) > 25
    shown = "\n".join(ask.answers.values())
    assert ENV not in shown
    assert ENV in str(ask("GET", "/v1/jobs/a", token=made[0]))  # who may submit may see it
    assert daemon.end() == 0
    for line in daemon.log.splitlines():
        assert json.loads(line)["event"]
    for secret in (machine, *made):
        assert secret not in shown
        assert secret not in daemon.log
        for file in (tmp_path / "state").iterdir():
            if file.is_file() and file.name != "token":
                assert secret.encode() not in file.read_bytes()
    for secret in (ENV, COMMAND):
        assert secret not in daemon.log
