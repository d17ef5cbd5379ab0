#!/usr/bin/env python3
"""Submit a job over MQTT, and resend it until SIA confirms that the job is stored.

    pip install aiomqtt
    python submitter.py --pool vision '{"id": "train-17", "gpus": 4, "command": ["python", "t.py"]}'

The broker's acknowledgement means that the broker has the message, not that SIA has the job.
Submitting the same id again has no effect. Exits with 0 if SIA has the job, otherwise with 1.
"""

import argparse
import asyncio
import json
import sys
import uuid
from pathlib import Path

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

OLD_BROKER = 132
AGAIN = 5.0
PATIENCE = 60.0


class NoAnswerError(Exception):
    """SIA did not answer."""


def as_json(text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid JSON: {error}") from None


async def submit(bus, cluster, pool, job, *, again=AGAIN):
    """Return SIA's answer: {"status": ..., "jobs": [...]}.

    Raises NoAnswerError if the answer could not be read, and aiomqtt.MqttError for other failures.
    """
    root = f"sia/v1/{cluster}/pool/{pool}"
    asked = Properties(PacketTypes.PUBLISH)
    asked.ResponseTopic = f"{root}/reply/{uuid.uuid4().hex}"
    asked.CorrelationData = uuid.uuid4().bytes
    for code in await bus.subscribe(asked.ResponseTopic, qos=1):
        if code.is_failure:
            raise NoAnswerError(f"the broker denies reading {root}/reply/: {code}")
    while True:
        await bus.publish(f"{root}/submit", json.dumps(job), qos=1, properties=asked)
        try:
            async with asyncio.timeout(again):
                async for message in bus.messages:
                    if message.properties.CorrelationData == asked.CorrelationData:
                        return json.loads(message.payload)
        except TimeoutError:
            continue


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=as_json, help="as JSON")
    parser.add_argument("--pool", required=True)
    parser.add_argument("--cluster", default="main")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--user")
    parser.add_argument("--password-file", type=Path)
    parser.add_argument("--ca", type=Path, help="use TLS; trust only certificates of this CA file")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for an answer")
    asked = parser.parse_args()
    login = {"protocol": aiomqtt.ProtocolVersion.V5, "username": asked.user}
    try:
        if asked.password_file:
            login["password"] = asked.password_file.read_text().strip()
        if asked.ca:
            asked.ca.read_bytes()
            login["tls_params"] = aiomqtt.TLSParameters(ca_certs=asked.ca)
    except OSError as error:
        return f"{error.filename}: {error.strerror}; name another file"
    try:
        async with (
            asyncio.timeout(asked.patience),
            aiomqtt.Client(asked.host, asked.port, **login) as bus,
        ):
            said = await submit(bus, asked.cluster, asked.pool, asked.job)
    except TimeoutError:
        return (
            f"no answer within {asked.patience:g} s; check that SIA is running, that the "
            f"broker's ACL lets you write to pool {asked.pool}, and --ca if it uses TLS"
        )
    except (aiomqtt.MqttError, NoAnswerError, OSError) as error:
        if getattr(error, "rc", None) == OLD_BROKER:
            return "the broker does not support MQTT 5, which replies need; use mosquitto"
        return f"{error}; check the user, the password, the pool and the broker's ACL"
    print(json.dumps(said))
    wrong = [job for job in said.get("jobs", []) if job["status"] >= 400]
    return "refused" if wrong or said["status"] >= 400 else None


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
