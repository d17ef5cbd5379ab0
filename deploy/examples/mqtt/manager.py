#!/usr/bin/env python3
"""A cluster manager that talks to SIA only over MQTT: it takes orders, runs jobs and reports.

    pip install aiomqtt
    python manager.py --host 127.0.0.1 --port 1883 --cluster main --memory manager.jsonl

The manager runs each job's command as a process. An order with `duration` only waits that long.
A manager of your own must do the same in these points (docs/operate/mqtt.md has the contract):

- It starts an attempt (job, attempt) once, and records the start on disk before the attempt begins.
- Jobs outlive the manager. Each runs in its own process group. The manager stores the group's id
  and start time on disk before the command begins, and watches the group again after a restart.
- It answers `sync` for each attempt that the message names, even if it has reported it before.
- It ignores orders with an older epoch than the newest it has seen: a former leader sent them.
- Its own epoch grows with each start, so that the daemon can ignore reports of earlier runs.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import aiomqtt

BEAT_EVERY = 5.0
LOOK_EVERY = 0.2
GRACE = 30.0

# Script of the leader of a job's process group. It waits until the manager has stored the group's
# id, and exits if the manager dies before. Then it runs the command, writes the exit code to a
# file, and kills the rest of the group.
LEADER = """
read -r go || exit
trap : TERM
"$@" </dev/null
echo $? >"$0.new" && mv "$0.new" "$0"
kill -KILL 0
"""


def stat(pid):
    """Return a process's group and start time; None if it does not exist or is a zombie."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if words[0] in "ZX" else (int(words[2]), int(words[19]))


def boot():
    """Return the id of this boot of the machine; start times count from the boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_there(process):
    """Return whether any process of a job's group is running."""
    group, since = process["group"], process["since"]
    if process["boot"] != boot():
        return False
    leader = stat(group)
    if leader is not None:
        return leader[1] == since  # otherwise the pid was reused
    found = (stat(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    return any(one is not None and one[0] == group and one[1] >= since for one in found)


def end(process, how):
    """Send a signal to a job's process group."""
    if is_there(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process["group"], how)


def heed_cancellation():
    """End the current task if it was cancelled.

    `asyncio.wait_for` of Python 3.11, which aiomqtt uses, may lose a cancellation.
    """
    if asyncio.current_task().cancelling():
        raise asyncio.CancelledError


class Memory:
    """A file of JSON lines: attempts started, how they ended, and the newest epochs."""

    def __init__(self, path):
        self.started, self.processes, self.over = set(), {}, {}
        self.daemon, self.epoch = 0, 0
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # a crash may cut off the last line
                    self._take(json.loads(line))
        self._file = path.open("a")

    def _take(self, fact):
        key = fact.get("job"), fact.get("attempt")
        if fact["what"] == "started":
            self.started.add(key)
        elif fact["what"] == "process":
            self.processes[key] = fact["process"]
        elif fact["what"] == "over":
            self.processes.pop(key, None)
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
    """Carries out the daemon's orders and reports the results."""

    def __init__(self, cluster, path, *, speed=1.0, beat=BEAT_EVERY):
        self.root = f"sia/v1/{cluster}/manager"
        self.memory = Memory(path)
        self.memory.keep("epoch", value=max(self.memory.epoch + 1, time.time_ns() // 1_000_000))
        self.exits = path.with_suffix(".exits").absolute()
        self.exits.mkdir(exist_ok=True)
        self.speed, self.beat = speed, beat
        self.running = {}  # tasks, by (job, attempt)
        self.named = set()  # attempts named by the current `sync`
        self.stopped = set()
        self.outbox = asyncio.Queue()

    async def live(self, host, port, **login):
        """Stay connected to the broker, reconnecting when needed; jobs run on meanwhile."""
        for key in self.memory.started - self.memory.over.keys():
            self.running[key] = asyncio.create_task(self._run(key))
        while True:
            try:
                await self._be(host, port, login)
            except* (aiomqtt.MqttError, OSError) as errors:
                print(f"no connection to the broker ({errors.exceptions[0]}); retrying", flush=True)
            heed_cancellation()
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
            heed_cancellation()
            group.create_task(self._beat(bus))
            group.create_task(self._report(bus))
            print(f"connected to {host}:{port}; {len(self.running)} jobs are running", flush=True)
            async for message in bus.messages:
                self.obey(json.loads(message.payload))
            raise aiomqtt.MqttError("the connection ended")

    def _state(self, *, here):
        known = {"epoch": self.memory.epoch, "daemon": self.memory.daemon}
        return json.dumps({**known, "here": here})

    async def _beat(self, bus):
        while True:
            heed_cancellation()
            await bus.publish(f"{self.root}/state", self._state(here=True), qos=1, retain=True)
            await asyncio.sleep(self.beat)

    async def _report(self, bus):
        """Send reports; a report that could not be sent goes back into the queue."""
        while True:
            heed_cancellation()
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
        """Carry out an order of the daemon, unless a former leader sent it."""
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
            self._stop(key)

    def _start(self, key, order):
        if key in self.memory.started:
            self._tell(key)
            return
        self.memory.keep("started", job=key[0], attempt=key[1])
        self.running[key] = asyncio.create_task(self._run(key, order))
        self.say("started", key)

    def _stop(self, key):
        if key not in self.stopped:
            self.stopped.add(key)
            asyncio.get_running_loop().call_soon(self._end, key)  # set once its task has begun

    def _end(self, key):
        process = self.memory.processes.get(key)
        if process is None:
            if key in self.running:
                self.running[key].cancel()
            return
        end(process, signal.SIGTERM)
        asyncio.get_running_loop().call_later(GRACE, end, process, signal.SIGKILL)

    async def _run(self, key, order=None):
        """Run an attempt to its end; without an order, watch one from before this start."""
        try:
            report = await self._until_over(key, order)
        except asyncio.CancelledError:
            if key not in self.stopped:  # the manager ends; its jobs run on
                raise
            report = {"say": "ended", "signal": 15}
        except OSError as error:
            report = {"say": "ended", "code": 127, "why": str(error)}
        del self.running[key]
        self._over(key, report)

    async def _until_over(self, key, order):
        child = None
        if order is not None:
            if order.get("duration") is not None:
                await asyncio.sleep(order["duration"] / self.speed)
                return {"say": "ended", "code": 0}
            child = self._begin(key, order)
        process = self.memory.processes.get(key)
        while process is not None and is_there(process):
            await asyncio.sleep(LOOK_EVERY)
            if child is not None:
                child.poll()
        return self._exit(key, process)

    def _begin(self, key, order):
        """Start a command after its process group has been stored on disk."""
        gpus = ",".join(str(gpu) for each in order.get("nodes", {}).values() for gpu in each)
        name = uuid.uuid4().hex
        child = subprocess.Popen(  # noqa: S603 the order's own words, no shell's
            ["/bin/sh", "-c", LEADER, str(self.exits / name), *order["command"]],
            cwd=order.get("cwd") or None, stdin=subprocess.PIPE, start_new_session=True,
            env={**os.environ, **order.get("env", {}), "CUDA_VISIBLE_DEVICES": gpus},
        )  # fmt: skip
        process = {"group": child.pid, "since": stat(child.pid)[1], "boot": boot(), "exit": name}
        self.memory.keep("process", job=key[0], attempt=key[1], process=process)
        with child.stdin, contextlib.suppress(BrokenPipeError):
            child.stdin.write(b"go\n")
            child.stdin.flush()
        return child

    def _exit(self, key, process):
        """Return the report for an attempt whose processes have all ended."""
        try:
            code = int((self.exits / process["exit"]).read_text()) if process else None
        except FileNotFoundError:
            code = None
        if code is None and key in self.stopped:
            return {"say": "ended", "signal": 9}
        if code is None:
            return {"say": "lost", "why": "the job has ended with an unknown exit code"}
        return {"say": "ended", **({"signal": code - 128} if code > 128 else {"code": code})}

    def _over(self, key, report):
        process = self.memory.processes.get(key)
        self.memory.keep("over", job=key[0], attempt=key[1], report=report)
        self.stopped.discard(key)
        if process:
            (self.exits / process["exit"]).unlink(missing_ok=True)
        self._tell(key)

    def _tell(self, key):
        """Return the report of an attempt's state."""
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
    parser.add_argument("--ca", help="use TLS; trust only certificates of this CA file")
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
