"""`sia serve` as a process of its own, which a test may kill and start again."""

import json
import signal
import time
import urllib.error
import urllib.request

from tests.support.daemons.forked import ForkedProcess
from tests.support.servers.servers import free_port

PATIENCE = 120.0
"""Seconds until a started daemon answers: on a busy machine that takes half a minute."""


class ServedDaemon:
    """A daemon with the sections of `[daemon]` and all others that the test writes."""

    def __init__(self, folder, settings, rest):
        port = free_port()
        self.url, self.folder = f"http://127.0.0.1:{port}/v1", folder
        self.path = folder / "sia.toml"
        own = f'[daemon]\nstate = "{folder}"\nlisten = "127.0.0.1:{port}"\n'
        self.path.write_text(f"{own}{settings}\n{rest}")
        self.process = None

    def start(self):
        with (self.folder / "log").open("ab") as log:
            self.process = ForkedProcess("serve", "--config", self.path, stdout=log, stderr=log)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)

    def log(self):
        """Return the end of its log."""
        return (self.folder / "log").read_text()[-3000:]

    def ask(self, method, path, body=None):
        """Return the answer, as soon as there is one."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                token = (self.folder / "token").read_text().strip()
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                data = None if body is None else json.dumps(body).encode()
                request = urllib.request.Request(self.url + path, data, headers, method=method)
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return json.load(answer)
            except (OSError, urllib.error.HTTPError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                    raise AssertionError(error.read()) from None
                assert time.monotonic() < end, self.log()
                time.sleep(0.1)

    def job(self, job_id):
        """Return a job as the daemon shows it."""
        return self.ask("GET", f"/jobs/{job_id}")

    def until(self, happens, what, seconds=PATIENCE):
        """Wait until a condition holds; then return its value."""
        end = time.monotonic() + seconds
        while not (found := happens()):
            assert time.monotonic() < end, f"{what}\n{self.log()}"
            time.sleep(0.05)
        return found
