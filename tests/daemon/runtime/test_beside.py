"""What is done beside serving: a defect there ends nothing else, and is said."""

import asyncio
import signal
import ssl
import time
from http.client import HTTPSConnection

import pytest

from daemon.config.access import TlsConfig
from daemon.config.config import Address
from daemon.config.tls import Certificate
from daemon.doors.webhooks.webhooks import Hooks
from daemon.process.serve import serving
from daemon.runtime.background import BackgroundTask, meanwhile
from daemon.runtime.health import HealthRegistry
from tests.daemon.cli.test_commands import Served
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import config_in
from tests.support.servers.certificates import Pair
from tests.support.servers.webhooks import happens, hook, receiver, telling, told_all


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("daemon.runtime.background.BEGIN_AGAIN", 0.05)


def test_a_failed_task_is_reported_and_restarted(at_once):
    parts, begun = HealthRegistry(lambda: 0.0), []

    async def work():
        begun.append(parts.all())
        if len(begun) < 3:
            raise RuntimeError("a defect")
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("another one, at the end")

    async def story():
        async with meanwhile(parts, BackgroundTask("tls", work)):
            await until(lambda: parts.all() and not parts.all()[0].ok)
            assert "internal error" in parts.all()[0].why
            await until(lambda: len(begun) == 3)
            assert parts.all()[0].ok

    asyncio.run(story())


def test_webhooks_go_on_after_a_defect(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("daemon.doors.webhooks.cursors.SAVE_EVERY", 0.01)

    async def story():
        async with receiver() as there, telling(tmp_path, hook(tmp_path, there)) as daemon:
            notes, broke = daemon.hooks._ledger._notes, []

            async def write(changes):
                broke.append(changes)
                raise RuntimeError("a defect")

            with monkeypatch.context() as patch:
                patch.setattr(type(notes), "write", lambda self, changes: write(changes))
                await happens(daemon.service, 2)
                await until(lambda: broke)
            await happens(daemon.service, 2, prefix="later")
            await told_all(daemon, there)

    asyncio.run(story())


def test_a_takeover_skips_a_webhook_whose_secret_is_missing(tmp_path):
    async def story():
        async with receiver() as there, telling(tmp_path) as daemon:
            said = hook(tmp_path, there)
            said.secret_file.unlink()
            hooks = Hooks([said], daemon.service, lenient=True)
            await hooks.open(0)
            assert list(hooks) == []
            (part,) = [each for each in daemon.service.parts.all() if each.name == "webhook ops"]
            assert "No such file" in part.why
            assert "restart the daemon" in part.mend

    asyncio.run(story())


def test_a_takeover_keeps_the_old_certificate_while_it_is_replaced(tmp_path):
    """The certificate is another one already, its key is not yet."""
    pair, other = Pair(tmp_path, "pair"), Pair(tmp_path, "other")
    tls = TlsConfig(str(pair.certificate), str(pair.key))
    trust = ssl.create_default_context(cafile=str(pair.certificate))
    held = Certificate(tls)
    trust.load_verify_locations(pair.certificate)
    pair.certificate.write_bytes(other.certificate.read_bytes())
    config = config_in(tmp_path, tls=tls, listen=Address("127.0.0.1", 0))

    def ask(port):
        connection = HTTPSConnection("127.0.0.1", port, context=trust)
        connection.request("GET", "/readyz")
        text = connection.getresponse().read().decode()
        connection.close()
        return text

    async def story():
        async with serving(config, certificate=held) as (daemon, address):
            await until(lambda: any(not each.ok for each in daemon.service.parts.all()))
            assert "tls" in await asyncio.to_thread(ask, address.port)

    asyncio.run(story())


class Hung(Served):
    """A daemon that hears SIGHUP while it restores, while it serves, and while it stops."""

    def begin(self):
        self.begin_only()
        deadline = time.monotonic() + 20
        while "restoring" not in self._log.read_text():
            assert time.monotonic() < deadline
        self.process.send_signal(signal.SIGHUP)
        self.first = self.process.stdout.readline()


def test_sighup_does_not_end_the_daemon(tmp_path):
    daemon = Hung(tmp_path)
    assert daemon.first.startswith("serving on")
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon("pools").returncode == 0
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.send_signal(signal.SIGHUP)
    assert daemon.end() == 0
