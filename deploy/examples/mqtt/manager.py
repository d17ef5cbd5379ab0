#!/usr/bin/env python3
"""A cluster manager that lives on SIA's topics alone: takes orders, runs jobs, reports.

    pip install aiomqtt
    python manager.py --host 127.0.0.1 --port 1883 --cluster main --memory manager.jsonl

It runs each job's command as a process, or, where the order says `duration`, waits so long.
What matters of it for a manager of your own (docs/mqtt.md has the contract):

- An attempt (job, attempt) is started once. That it was is on the disk before it begins.
- It answers `sync` for each attempt that is named, whatever it said before.
- Orders of an older epoch than the newest ever seen are void: a daemon that was deposed sent them.
- Its own epoch grows with each start: reports of the one before are void.
"""

import argparse
import asyncio
import contextlib
import json
import os
import time
from pathlib import Path

import aiomqtt

BEAT_EVERY = 5.0


class Memory:
    """Lines of JSON on the disk: what was started and how it ended, the newest epochs."""

    def __init__(self, path):
        self.started, self.over, self.daemon, self.epoch = set(), {}, 0, 0
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one, cut short by a crash
                    self._take(json.loads(line))
        self._file = path.open("a")

    def _take(self, fact):
        key = fact.get("job"), fact.get("attempt")
        if fact["what"] == "started":
            self.started.add(key)
        elif fact["what"] == "over":
            self.over[key] = fact["report"]
        else:
            setattr(self, fact["what"], fact["value"])

    def keep(self, what, **fact):
        fact = {"what": what, **fact}
        self._take(fact)
        self._file.write(json.dumps(fact) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self):
        self._file.close()


class Manager:
    """Runs what it is told to."""

    def __init__(self, cluster, path, *, speed=1.0, beat=BEAT_EVERY):
        self.root = f"sia/v1/{cluster}/manager"
        self.memory = Memory(path)
        self.memory.keep("epoch", value=max(self.memory.epoch + 1, time.time_ns() // 1_000_000))
        self.speed, self.beat = speed, beat
        self.running = {}  # tasks, by (job, attempt)
        self.named = set()  # by the `sync` that is being read
        self.outbox = asyncio.Queue()
        for key in self.memory.started - self.memory.over.keys():
            self._over(key, {"say": "lost", "why": "the manager was started anew while it ran"})

    async def live(self, host, port, **login):
        """Be on the bus, whatever becomes of the broker; jobs go on without it."""
        while True:
            try:
                await self._be(host, port, login)
            except* (aiomqtt.MqttError, OSError) as errors:
                print(f"no broker ({errors.exceptions[0]}); trying again", flush=True)
            await asyncio.sleep(1)

    async def _be(self, host, port, login):
        gone = aiomqtt.Will(f"{self.root}/state", self._state(here=False), 1, retain=True)
        name = login.get("username") or f"manager-{self.root.split('/')[2]}"
        async with (
            aiomqtt.Client(
                host, port, identifier=name, clean_session=False, will=gone, **login
            ) as bus,
            asyncio.TaskGroup() as group,
        ):
            await bus.subscribe(f"{self.root}/order", qos=1)
            group.create_task(self._beat(bus))
            group.create_task(self._report(bus))
            async for message in bus.messages:
                self.obey(json.loads(message.payload))
            raise aiomqtt.MqttError("the connection ended")

    def _state(self, *, here):
        return json.dumps({"epoch": self.memory.epoch, "here": here})

    async def _beat(self, bus):
        while True:
            await bus.publish(f"{self.root}/state", self._state(here=True), qos=1, retain=True)
            await asyncio.sleep(self.beat)

    async def _report(self, bus):
        """What cannot be said now is said later, or when the daemon asks."""
        while True:
            report = await self.outbox.get()
            try:
                await bus.publish(f"{self.root}/report", json.dumps(report), qos=1)
            except BaseException:
                self.outbox.put_nowait(report)
                raise

    def say(self, what, key=None, **more):
        report = {"say": what, "manager": self.memory.epoch, **more}
        if key is not None:
            report["job"], report["attempt"] = key
        self.outbox.put_nowait(report)

    def obey(self, order):
        """Do what the daemon says, if it is the daemon's turn."""
        if order["epoch"] < self.memory.daemon:
            return
        if order["epoch"] > self.memory.daemon:
            self.memory.keep("daemon", value=order["epoch"])
        if order["do"] == "sync":
            self._answer(order)
            return
        key = order["job"], order["attempt"]
        if order["do"] == "start":
            self._start(key, order)
        elif order["kind"] == "end" and key in self.running:
            self.running[key].cancel()

    def _start(self, key, order):
        if key in self.memory.started:
            self._tell(key)
            return
        self.memory.keep("started", job=key[0], attempt=key[1])
        self.running[key] = asyncio.create_task(self._run(key, order))
        self.say("started", key)

    async def _run(self, key, order):
        try:
            report = await self._until_over(order)
        except asyncio.CancelledError:
            report = {"say": "ended", "signal": 15}
        except OSError as error:
            report = {"say": "ended", "code": 127, "why": str(error)}
        del self.running[key]
        self._over(key, report)

    async def _until_over(self, order):
        if order.get("duration") is not None:
            await asyncio.sleep(order["duration"] / self.speed)
            return {"say": "ended", "code": 0}
        gpus = ",".join(str(gpu) for each in order.get("nodes", {}).values() for gpu in each)
        process = await asyncio.create_subprocess_exec(
            *order["command"], cwd=order.get("cwd") or None,
            env={**os.environ, **order.get("env", {}), "CUDA_VISIBLE_DEVICES": gpus},
        )  # fmt: skip
        try:
            return {"say": "ended", "code": await process.wait()}
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise

    def _over(self, key, report):
        self.memory.keep("over", job=key[0], attempt=key[1], report=report)
        self._tell(key)

    def _tell(self, key):
        """How an attempt is."""
        if key in self.running:
            self.say("started", key)
        elif key in self.memory.over:
            report = self.memory.over[key]
            self.say(report["say"], key, **{k: v for k, v in report.items() if k != "say"})

    def _answer(self, sync):
        for job, attempt in sync.get("jobs", []):
            self.named.add((job, attempt))
            if (job, attempt) in self.memory.started:
                self._tell((job, attempt))
            else:
                self.say("unknown", (job, attempt), number=sync["number"])
        if not sync.get("more"):
            for key in () if sync.get("some") else self.running.keys() - self.named:
                self.say("also", key)
            self.say("synced", number=sync["number"])
            self.named = set()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--cluster", default="main")
    parser.add_argument("--memory", type=Path, default=Path("manager.jsonl"))
    parser.add_argument("--user")
    parser.add_argument("--password-file", type=Path)
    parser.add_argument("--ca", help="speak TLS, and take the broker's word for nothing else")
    asked = parser.parse_args()
    login = {}
    if asked.user:
        password = asked.password_file.read_text().strip() if asked.password_file else None
        login = {"username": asked.user, "password": password}
    if asked.ca:
        login["tls_params"] = aiomqtt.TLSParameters(ca_certs=asked.ca)

    async def live():
        await Manager(asked.cluster, asked.memory).live(asked.host, asked.port, **login)

    asyncio.run(live())


if __name__ == "__main__":
    main()
