#!/usr/bin/env python3
"""Submit a job over MQTT, and wait until it is safe: sent again until SIA answers.

    pip install aiomqtt
    python submitter.py --pool vision '{"id": "train-17", "gpus": 4, "command": ["python", "t.py"]}'

The broker's own acknowledgement says that the broker has it, not that SIA does. Because a job has
an id, sending it again is sending it once.
"""

import argparse
import asyncio
import json
import uuid
from pathlib import Path

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

AGAIN = 5.0


async def submit(bus, cluster, pool, job, *, again=AGAIN):
    """What became of a job: {"status": ..., "jobs": [...]}."""
    root = f"sia/v1/{cluster}/pool/{pool}"
    asked = Properties(PacketTypes.PUBLISH)
    asked.ResponseTopic = f"{root}/reply/{uuid.uuid4().hex}"
    asked.CorrelationData = uuid.uuid4().bytes
    await bus.subscribe(asked.ResponseTopic, qos=1)
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
    parser.add_argument("job", type=json.loads)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--cluster", default="main")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--user")
    parser.add_argument("--password-file", type=Path)
    parser.add_argument("--ca", help="speak TLS; the certificate that vouches for the broker")
    asked = parser.parse_args()
    login = {"protocol": aiomqtt.ProtocolVersion.V5, "username": asked.user}
    if asked.password_file:
        login["password"] = asked.password_file.read_text().strip()
    if asked.ca:
        login["tls_params"] = aiomqtt.TLSParameters(ca_certs=asked.ca)
    async with aiomqtt.Client(asked.host, asked.port, **login) as bus:
        print(json.dumps(await submit(bus, asked.cluster, asked.pool, asked.job)))


if __name__ == "__main__":
    asyncio.run(main())
