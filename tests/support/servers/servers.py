"""Real servers for tests: on free ports of the loopback interface, ended by pid."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest


def needs(*programs):
    """Skip a test where a server is not installed; conftest makes that a failure in CI."""
    missing = [name for name in programs if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


POSTGRES = ["", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))][-1]
PATH = os.pathsep.join(
    [os.environ["PATH"], "/usr/sbin", POSTGRES, str(Path(sys.executable).parent)]
)


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process, seconds=20.0):
    """Wait until a server listens on a port."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"{process.args[0]} ended with {process.returncode}")
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"no server listens on {port}")


class Mosquitto:
    """A broker that can be stopped and restarted on its port."""

    def __init__(self, folder, lines=(), port=None):
        needs("mosquitto")
        self.port = port or free_port()
        self.folder = folder
        self.conf = folder / f"mosquitto-{self.port}.conf"
        self.lines = lines
        self.process = None

    def start(self):
        lines = self.lines or (f"listener {self.port} 127.0.0.1", "allow_anonymous true")
        text = ("user root", "max_queued_messages 1000000", *lines)
        self.conf.write_text("\n".join(line.format(port=self.port) for line in text) + "\n")
        with self.conf.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [shutil.which("mosquitto", path=PATH), "-c", str(self.conf)],
                stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self.port, self.process)
        return self

    def stop(self, how=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(20)
        self.process = None


@contextmanager
def mosquitto(folder, lines=(), port=None):
    """`lines` of its configuration may say {port}."""
    broker = Mosquitto(folder, lines, port).start()
    try:
        yield broker
    finally:
        broker.stop(signal.SIGKILL)


class Postgres:
    """A PostgreSQL with its data in a folder; it can be stopped and restarted."""

    def __init__(self, folder):
        needs("initdb", "postgres", "psql", "runuser")
        self.folder, self.data = folder, folder / "data"
        self.port = free_port()
        self.process = None
        folder.chmod(0o755)
        for each in folder.parents:  # the server's user must be able to enter the folder
            if each.stat().st_uid == os.getuid() and each != each.parent:
                each.chmod(each.stat().st_mode | 0o011)
        self.data.mkdir()
        shutil.chown(self.data, "postgres", "postgres")
        self._as_postgres("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-N")

    def _as_postgres(self, program, *words):
        path = shutil.which(program, path=PATH)
        subprocess.run(
            ["runuser", "-u", "postgres", "--", path, *map(str, words)],
            check=True, capture_output=True, cwd="/",
        )  # fmt: skip

    def start(self):
        words = ["-D", self.data, "-p", self.port, "-k", "", "-c", "listen_addresses=127.0.0.1"]
        account = shutil.which("postgres", path=PATH)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [account, *map(str, words)], user="postgres", group="postgres", extra_groups=[],
                stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        wait_for(self.port, self.process)
        self._until_ready()
        return self

    def _until_ready(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if self.run("SELECT 1", check=False).returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError("PostgreSQL accepts no queries")

    def run(self, sql, database="postgres", *, check=True):
        psql = shutil.which("psql", path=PATH)
        return subprocess.run(
            [psql, "-qtAX", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres",
             "-d", database, "-c", sql],
            check=check, capture_output=True, text=True,
        )  # fmt: skip

    def stop(self, how=signal.SIGINT):
        """Stop the server: SIGINT is a fast shutdown, SIGQUIT a crash."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(30)
        self.process = None

    def database(self, name):
        """Create an empty database and return its URL."""
        self.run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        self.run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def url(self, name):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"


@contextmanager
def postgres_server(folder):
    server = Postgres(folder).start()
    try:
        yield server
    finally:
        server.stop(signal.SIGQUIT)
