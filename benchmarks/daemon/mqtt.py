"""Durable submissions a second through mosquitto, and events to 200 subscribers.

The daemon is a process of its own (`sia serve`, simulated backend), mosquitto another one, clients
a third. A submission counts when its answer is there: it is durable then.

    python -m benchmarks.daemon.mqtt [--jobs 20000] [--subscribers 200]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks.common import keep

CONFIG = """
[daemon]
state = "state"
listen = "127.0.0.1:0"
[mqtt]
port = {port}
[backend]
kind = "simulated"
speed = 1.0
[[pool]]
name = "p"
quota = 60000
"""
BROKER = """
listener {port} 127.0.0.1
allow_anonymous true
max_queued_messages 1000000
max_inflight_messages 1000
"""
ROOT = "sia/v1/main/pool/p"
CLIENTS = 8
"""Each sends its next job when at most `AHEAD` of its jobs are not answered."""
AHEAD = 100
RATE = 4
"""Jobs per second while events are watched, with three events each: half of what two hundred
subscribers in one Python process can read."""
V5 = aiomqtt.ProtocolVersion.V5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


async def submits(port: int, name: str, jobs: int) -> None:
    """Send so many, one a message, and wait for all answers."""
    asked = Properties(PacketTypes.PUBLISH)
    asked.ResponseTopic = f"{ROOT}/reply/{name}"
    room = asyncio.Semaphore(AHEAD)
    async with aiomqtt.Client("127.0.0.1", port, protocol=V5, max_inflight_messages=AHEAD) as bus:
        bus.pending_calls_threshold = 10**6
        await bus.subscribe(asked.ResponseTopic, qos=1)

        async def send(number: int) -> None:
            job = {
                "id": f"{name}-{number}", "gpus": 1 + number % 4, "duration": 5.0,
                "user": f"u{number % 97}", "name": "train", "command": ["python", "train.py"],
            }  # fmt: skip
            await bus.publish(f"{ROOT}/submit", json.dumps(job), 1, properties=asked)

        async def hear() -> None:
            answered = 0
            async for message in bus.messages:
                assert b'"status":201' in message.payload, message.payload
                room.release()
                answered += 1
                if answered == jobs:
                    return

        hearing, sending = asyncio.create_task(hear()), set()
        for number in range(jobs):
            await room.acquire()
            task = asyncio.create_task(send(number))
            sending.add(task)
            task.add_done_callback(sending.discard)
        await hearing


async def fan_out(port: int, subscribers: int, seconds: float) -> list[float]:
    """Seconds from an event's time to each subscriber that hears of it."""
    took: list[float] = []

    async def follow(bus: aiomqtt.Client) -> None:
        async for message in bus.messages:
            event = json.loads(message.payload)
            if event["seq"]:
                took.append(time.time() - event["time"])

    async with AsyncExitStack() as stack:
        tasks = []
        for _ in range(subscribers):
            bus = await stack.enter_async_context(aiomqtt.Client("127.0.0.1", port, protocol=V5))
            await bus.subscribe(f"{ROOT}/event", qos=1)
            tasks.append(asyncio.create_task(follow(bus)))
        bus = await stack.enter_async_context(aiomqtt.Client("127.0.0.1", port, protocol=V5))
        for number in range(int(seconds * RATE)):
            job = {"id": f"e-{number}", "gpus": 1, "duration": 1e6}
            await bus.publish(f"{ROOT}/submit", json.dumps(job), 1)
            await asyncio.sleep(1 / RATE)
        heard = -1
        while heard != len(took):
            heard = len(took)
            await asyncio.sleep(2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return took


async def measure(port: int, jobs: int, subscribers: int) -> dict[str, Any]:
    await submits(port, "warm", 500)
    began = time.perf_counter()
    await asyncio.gather(*(submits(port, f"c{i}", jobs // CLIENTS) for i in range(CLIENTS)))
    rate = jobs // CLIENTS * CLIENTS / (time.perf_counter() - began)
    print(f"{rate:,.0f} durable submissions a second", flush=True)
    await asyncio.sleep(20)  # the last of them end
    took = sorted(await fan_out(port, subscribers, 20))
    found = {
        "submissions a second": round(rate),
        "jobs": jobs,
        "subscribers": subscribers,
        "events": len(took),
        "p50": round(took[len(took) // 2], 3),
        "p99": round(took[len(took) * 99 // 100], 3),
        "max": round(took[-1], 3),
    }
    print(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--subscribers", type=int, default=200)
    asked = parser.parse_args()
    mosquitto = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    with TemporaryDirectory() as folder:
        port, place = free_port(), Path(folder)
        (place / "sia.toml").write_text(CONFIG.format(port=port))
        (place / "mosquitto.conf").write_text(BROKER.format(port=port))
        with (place / "broker.log").open("w") as log:
            broker = subprocess.Popen([mosquitto, "-c", "mosquitto.conf"], cwd=place, stderr=log)
        sia = subprocess.Popen(
            [sys.executable, "-m", "sia", "serve"], cwd=place, stdout=subprocess.PIPE, text=True,
            stderr=(place / "log").open("w"),
        )  # fmt: skip
        try:
            assert sia.stdout is not None
            sia.stdout.readline()
            time.sleep(3)
            found = asyncio.run(measure(port, asked.jobs, asked.subscribers))
        finally:
            for process in (sia, broker):
                process.terminate()
                process.wait()
    keep("daemon/mqtt", found)


if __name__ == "__main__":
    main()
