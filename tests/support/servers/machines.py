"""A Debian for tests, booted by systemd-nspawn in a folder; it shares the host's network."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.servers import PATH, needs

NEEDED = ("debootstrap", "systemd-nspawn", "nsenter")
MIRROR = "http://deb.debian.org/debian"
TRUSTED = "/etc/registries.crt"
"""There, a copy of what `PIP_CERT` names here."""
OF_PIP = ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT")
"""Variables that go along: how registries are reached."""
BOOT = 60.0
"""Time limit of the boot in seconds."""


class Machine:
    """A minimal Debian with systemd, like a fresh server.

    If `SIA_DEBIAN` names a folder that debootstrap has filled, the folder is copied.
    """

    def __init__(self, folder):
        needs(*NEEDED)
        self.root = folder / "machine"
        self.log = folder / "machine.log"
        if "SIA_DEBIAN" in os.environ:
            self._command("cp", "-a", os.environ["SIA_DEBIAN"], self.root)
        else:
            self._command("debootstrap", "--variant=minbase", "--include=systemd-sysv,dbus",
                          "bookworm", self.root, MIRROR)  # fmt: skip
        shutil.copy("/etc/resolv.conf", self.root / "etc" / "resolv.conf")
        if "PIP_CERT" in os.environ:
            shutil.copy(os.environ["PIP_CERT"], self.root / TRUSTED.lstrip("/"))
        self._nspawn = None
        self._first = None

    def _command(self, *words):
        env = {**os.environ, "PATH": PATH}
        with self.log.open("ab") as log:
            subprocess.run([*map(str, words)], check=True, stdout=log, stderr=log, env=env)

    def boot(self):
        """Boot, and wait until systemd reports that all units have started."""
        words = ["systemd-nspawn", "-D", self.root, "--register=no", "--keep-unit", "-b"]
        with self.log.open("ab") as log:
            self._nspawn = subprocess.Popen(
                [*map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "PATH": PATH}, start_new_session=True,
            )  # fmt: skip
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children")
        deadline = time.monotonic() + BOOT
        while time.monotonic() < deadline:
            self._first = next(iter(children.read_text().split()), None)
            if self._first and "running" in self.sh("systemctl is-system-running", check=False):
                return
            time.sleep(0.2)
        raise AssertionError(f"the machine does not boot: {self.log.read_text()[-2000:]}")

    def halt(self):
        """Shut down as with the power button: systemd stops all units in order."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            os.kill(int(self._first), signal.SIGRTMIN + 4)
            try:
                self._nspawn.wait(BOOT)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait()
        self._nspawn = None

    def sh(self, text, *, cwd="/", check=True):
        """Run lines in a root shell, which must all succeed, and return the output."""
        own = {name: os.environ[name] for name in OF_PIP if name in os.environ}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        if "PIP_CERT" in own:
            own["PIP_CERT"] = TRUSTED
        env = {**own, "PATH": path, "HOME": "/root", "LANG": "C.UTF-8",
               "DEBIAN_FRONTEND": "noninteractive"}  # fmt: skip
        done = subprocess.run(
            [shutil.which("nsenter"), "-t", self._first, "-m", "-p", "-u", "-i", "--",
             "/bin/sh", "-ec", f"cd {cwd}\n{text}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{text}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout

    def copy(self, root, to, names):
        """Copy files of a host folder into the machine."""
        for name in names:
            there = self.root / to.lstrip("/") / name
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, there)


@contextmanager
def machine(folder):
    """Yield a booted machine, and delete it afterwards."""
    one = Machine(folder)
    one.boot()
    try:
        yield one
    finally:
        one.halt()
        shutil.rmtree(one.root, ignore_errors=True)
