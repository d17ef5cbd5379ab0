"""What tests of `deploy/` stand on: its files, and the daemon as a service manager starts it."""

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
"""The command as units name it, after `deploy/install.sh`."""


def sia_here():
    """The command line of this interpreter."""
    return str(Path(sys.executable).with_name("sia"))


def unit(path):
    """A unit's values: section, key, all that it is given in order."""

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
    """A tool's code and all that it said."""
    done = subprocess.run(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, env={**os.environ, "PATH": PATH}, **more,
    )  # fmt: skip
    return done.returncode, done.stdout


@contextmanager
def manager(path):
    """Where a service says that it is ready, as systemd listens: what it said, when asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind("\0" + path[1:] if path[0] == "@" else path)
        line.settimeout(60)
        yield lambda: line.recv(4096).decode()


@contextmanager
def service(folder, words):
    """A daemon begun as a unit's command line says, once it said that it is ready; its status."""
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
    """The words of a unit's ExecStart, for the command and the configuration that are here."""
    (line,) = unit(path)["Service"]["ExecStart"]
    changed = {INSTALLED: sia_here(), "/etc/sia/sia.toml": str(config)}
    return [changed.get(word, word) for word in shlex.split(line)]
