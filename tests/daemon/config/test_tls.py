"""TLS: what is refused at the start, what is loaded anew, whom clients trust."""

import asyncio
import signal
import ssl
import time
from contextlib import closing
from http.client import HTTPSConnection

import pytest

from daemon.config.access import TlsConfig
from daemon.config.config import Address, Config
from daemon.config.read import ConfigError, read_config
from daemon.config.tls import Certificate, keep, tls_problems
from daemon.runtime.health import HealthRegistry
from sia.console.errors import UserError
from tests.daemon.cli.test_commands import Served, run
from tests.support.daemons.daemons import until
from tests.support.servers.certificates import Pair, openssl
from tests.support.servers.servers import free_port

pytestmark = pytest.mark.usefixtures("leaves_nothing")

POOL = '[[pool]]\nname = "a"\nquota = 1\n'


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = Pair(folder, "authority", names=None)
    return {
        "authority": authority,
        "good": Pair(folder, "good", by=authority),
        "own": Pair(folder, "own"),
        "soon": Pair(folder, "soon", days=5),
        "expired": Pair(folder, "expired", days=-1),
        "client": Pair(folder, "client", by=authority),
    }


def config(pair, **more):
    return TlsConfig(str(pair.certificate), str(pair.key), **more)


def test_a_valid_certificate_is_accepted_and_its_end_is_shown(pairs):
    for name in ("good", "own"):
        certificate = Certificate(config(pairs[name]))
        assert certificate.look().why == ""
        assert abs(certificate.expires - time.time() - 30 * 86400) < 7200
        assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2


def refused(said):
    with pytest.raises(UserError) as error:
        Certificate(said)
    return error.value.format_message()


def test_a_certificate_that_clients_would_refuse_is_refused_at_the_start(pairs, tmp_path):
    good, own = pairs["good"], pairs["own"]
    mixed = TlsConfig(str(good.certificate), str(own.key))
    assert "the certificate does not match the key" in refused(mixed)
    assert "has expired; renew the certificate" in refused(config(pairs["expired"]))
    gone = TlsConfig(str(tmp_path / "gone"), str(own.key))
    assert "No such file or directory; " in refused(gone)
    assert "tls.key" in refused(TlsConfig(str(own.certificate), str(tmp_path / "gone")))
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o600)
    assert "not a certificate and a key in PEM" in refused(TlsConfig(str(text), str(text)))
    locked = tmp_path / "locked.key"
    openssl("pkey", "-aes256", "-passout", "pass:x", "-in", own.key, "-out", locked)
    assert "the key has a password" in refused(TlsConfig(str(own.certificate), str(locked)))
    assert "set tls.client_ca to a PEM file" in refused(config(own, client_ca=str(text)))
    copy = tmp_path / "open.key"
    copy.write_bytes(own.key.read_bytes())
    copy.chmod(0o644)
    assert f"chmod 600 {copy}" in refused(TlsConfig(str(own.certificate), str(copy)))
    copy.chmod(0o640)  # a group's key is usual
    assert Certificate(TlsConfig(str(own.certificate), str(copy)))


def test_without_encryption_only_this_machine_is_served():
    outside = Address("0.0.0.0", 8642)
    (said,) = tls_problems(TlsConfig(), outside)
    assert "tls.certificate" in said
    assert "terminated_by_proxy = true" in said
    assert [*tls_problems(TlsConfig(terminated_by_proxy=True), outside)] == []
    assert [*tls_problems(TlsConfig(), Address("127.0.0.1", 8642))] == []
    assert [*tls_problems(TlsConfig(), Address("::1", 8642))] == []
    assert "tls.key: is missing" in next(tls_problems(TlsConfig("x"), outside))
    assert "tls.certificate: is missing" in next(tls_problems(TlsConfig(key="x"), outside))
    assert "has no effect without TLS" in next(
        tls_problems(TlsConfig(client_ca="x"), Config.embedded().listen)
    )


def test_the_check_reports_every_tls_error(pairs, tmp_path):
    file = tmp_path / "sia.toml"
    file.write_text(
        '[daemon]\nlisten = "0.0.0.0:1"\n[tls]\ncertificat = "x"\n[limits]\nrate = -1\n'
    )
    with pytest.raises(ConfigError) as error:
        read_config(file)
    said = "\n".join(error.value.problems)
    assert "did you mean certificate?" in said
    assert "limits.rate" in said
    assert "without encryption" in said
    good = pairs["good"]
    file.write_text(f'[tls]\ncertificate = "{good.certificate}"\nkey = "{good.key}"\n{POOL}')
    read = read_config(file)
    assert read.listen.url == "https://127.0.0.1:8642"
    assert read.tls == config(good)


def test_a_changed_certificate_is_reloaded_and_the_old_one_stays_if_it_is_invalid(pairs, tmp_path):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"

    def put(one, other):
        key.write_bytes(other.key.read_bytes())
        key.chmod(0o600)
        certificate.write_bytes(one.certificate.read_bytes())

    put(pairs["soon"], pairs["soon"])
    held = Certificate(TlsConfig(str(certificate), str(key)))
    why, mend = held.look()
    assert "expires in 5 days" in why
    assert mend
    put(pairs["own"], pairs["soon"])
    assert "the previous certificate stays in use" in held.look().why
    assert "the previous certificate stays in use" in held.look().why
    put(pairs["own"], pairs["own"])
    assert held.look() == ("", "")
    held.expires = time.time() - 1
    assert "has expired" in held.look().why


def test_the_daemon_warns_of_a_certificate_that_expires_soon(pairs):
    async def tell():
        parts = HealthRegistry(lambda: 0.0)
        certificate = Certificate(config(pairs["soon"]))
        watch = asyncio.create_task(keep(certificate, lambda *said: parts.say("tls", *said)))
        await until(lambda: parts.all() and not parts.all()[0].ok)
        watch.cancel()
        return parts.all()

    ((name, ok, why, mend, _),) = asyncio.run(tell())
    assert (name, ok) == ("tls", False)
    assert "expires in 5 days" in why
    assert mend


CONFIG = """
[daemon]
state = "state"
listen = "127.0.0.1:{port}"
forecast = "none"
[tls]
certificate = "{certificate}"
key = "{key}"
{more}
[[pool]]
name = "vision"
quota = 64
"""


@pytest.fixture
def serve(tmp_path, monkeypatch):
    begun = []

    def begin(pair, more=""):
        port = free_port()
        text = CONFIG.format(port=port, certificate=pair.certificate, key=pair.key, more=more)
        daemon = Served(tmp_path, text.replace("{", "{{").replace("}", "}}"))
        begun.append(daemon)
        monkeypatch.setenv("SIA_URL", f"https://127.0.0.1:{port}")
        monkeypatch.setenv("SIA_TOKEN_FILE", str(tmp_path / "state" / "token"))
        return daemon, port

    yield begin
    for daemon in begun:
        assert daemon.end() == 0


def test_a_client_trusts_whom_it_is_told_to(pairs, serve, monkeypatch):
    daemon, port = serve(pairs["good"])
    assert daemon.first.startswith(f"serving on https://127.0.0.1:{port}")
    unknown = run("pools")
    assert unknown.returncode == 3
    assert "the server's certificate is not trusted" in unknown.stderr
    assert "SIA_CA_FILE" in unknown.stderr
    assert unknown.stderr.count("\n") == 1
    monkeypatch.setenv("SIA_CA_FILE", str(pairs["authority"].certificate))
    assert run("pools").returncode == 0
    monkeypatch.setenv("SIA_URL", f"https://localhost:{port}")
    other = run("pools")
    assert other.returncode == 3
    assert "set SIA_URL to a name in the certificate" in other.stderr
    assert other.stderr.count("\n") == 1
    monkeypatch.setenv("SIA_URL", f"http://127.0.0.1:{port}")
    plain = run("pools")
    assert plain.returncode == 3
    assert "if the server uses TLS, write https://" in plain.stderr
    monkeypatch.setenv("SIA_URL", f"https://127.0.0.1:{port}")
    monkeypatch.setenv("SIA_CA_FILE", str(pairs["own"].certificate))
    assert run("pools").returncode == 3
    monkeypatch.setenv("SIA_CA_FILE", str(pairs["own"].key))
    assert "contains no certificates; set SIA_CA_FILE" in run("pools").stderr
    monkeypatch.delenv("SIA_URL")
    monkeypatch.delenv("SIA_CA_FILE")
    assert run("pools", "--config", daemon.config).returncode == 0  # by the daemon's own file


def test_a_daemon_may_require_client_certificates(pairs, serve, monkeypatch):
    authority, client = pairs["authority"].certificate, pairs["client"]
    serve(pairs["good"], f'client_ca = "{authority}"')
    monkeypatch.setenv("SIA_CA_FILE", str(authority))
    bare = run("pools")
    assert bare.returncode == 3
    assert "set SIA_CERT_FILE and SIA_KEY_FILE" in bare.stderr
    monkeypatch.setenv("SIA_CERT_FILE", str(client.certificate))
    monkeypatch.setenv("SIA_KEY_FILE", str(client.key))
    assert run("pools").returncode == 0
    monkeypatch.setenv("SIA_KEY_FILE", str(pairs["own"].key))
    assert "does not belong to the key in SIA_KEY_FILE" in run("pools").stderr


def test_sighup_reloads_the_certificate_and_keeps_open_connections(pairs, serve, tmp_path):
    folder = tmp_path / "shown"
    folder.mkdir()
    pair = Pair(folder, "pair", by=pairs["authority"])
    daemon, port = serve(pair)
    trust = ssl.create_default_context(cafile=str(pairs["authority"].certificate))
    kept = HTTPSConnection("127.0.0.1", port, context=trust)
    kept.request("GET", "/healthz")
    assert kept.getresponse().read()
    before = serial(port, trust)
    again = Pair(folder, "pair", by=pairs["authority"])
    assert again.certificate == pair.certificate
    daemon.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while serial(port, trust) == before:
        assert time.monotonic() < deadline
    kept.request("GET", "/healthz")
    response = kept.getresponse()
    assert (response.status, bool(response.read())) == (200, True)
    kept.close()


def serial(port, trust):
    """Of the certificate that is shown to a new connection."""
    with closing(HTTPSConnection("127.0.0.1", port, context=trust)) as connection:
        connection.connect()
        shown = connection.sock.getpeercert()
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
    return shown["serialNumber"]
