"""Helpers for tests of `deploy/`: its files, and the daemon started as systemd does."""

import configparser
import os
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.servers.servers import PATH

DEPLOY = ROOT / "deploy"
DOCS = ROOT / "docs"

INSTALLED = "/opt/sia/current/bin/sia"
"""Path of the command in units, as installed by `deploy/install.sh`."""


def sia_here():
    """The command of this interpreter's installation."""
    return str(Path(sys.executable).with_name("sia"))


def unit(path):
    """Return a unit's values in order, by section and key."""

    class Many(dict):
        def __setitem__(self, key, value):
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = configparser.RawConfigParser(dict_type=Many, strict=False)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return {name: {k: v.split("\n") for k, v in parser.items(name)} for name in parser.sections()}


def run(*words, **more):
    """Return a tool's exit code and its output."""
    done = subprocess.run(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, env={**os.environ, "PATH": PATH}, **more,
    )  # fmt: skip
    return done.returncode, done.stdout


@contextmanager
def manager(path):
    """Listen on a notification socket as systemd does; yield a function that reads messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind("\0" + path[1:] if path[0] == "@" else path)
        line.settimeout(60)
        yield lambda: line.recv(4096).decode()


@contextmanager
def service(folder, words):
    """Start a daemon with a unit's command line, wait until it is ready, and yield its status."""
    where = str(folder / "notify")
    env = {"PATH": os.defpath, "HOME": str(folder), "NOTIFY_SOCKET": where}
    with manager(where) as heard, (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, env=env, cwd=folder, stdout=log, stderr=log)
        try:
            yield process, heard()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def command_of(path, config):
    """Return a unit's ExecStart with the paths of this command and configuration."""
    (line,) = unit(path)["Service"]["ExecStart"]
    changed = {INSTALLED: sia_here(), "/etc/sia/sia.toml": str(config)}
    return [changed.get(word, word) for word in shlex.split(line)]
