"""The image: its file is well formed, its health check tells whether the daemon lives."""

import sys

import pytest

from tests.support.daemons.deployed import DEPLOY, ROOT, run, service, sia_here
from tests.support.files import written
from tests.support.servers.certificates import Pair
from tests.support.servers.servers import free_port, needs

FOLDER = DEPLOY / "container"
CONTAINERFILE = FOLDER / "Containerfile"


def healthy(config):
    return run(sys.executable, FOLDER / "healthy.py", config)


@pytest.mark.server
def test_the_containerfile_has_no_visible_faults():
    needs("hadolint")
    assert run("hadolint", CONTAINERFILE) == (0, "")


def test_the_image_contains_what_is_installed(tmp_path):
    """The packages of the wheel are let in, tests and the rest are not."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages < let_in
    assert let_in - packages == {"LICENSE", "README.md", "deploy", "pyproject.toml"}


@pytest.mark.parametrize("encrypted", [True, False], ids=["https", "http"])
def test_the_health_check_tells_whether_the_daemon_lives(encrypted, tmp_path):
    port = free_port()
    text = f'[daemon]\nstate = "state"\nlisten = "127.0.0.1:{port}"\nestimates = false\n'
    text += '[[pool]]\nname = "vision"\nquota = 1\n'
    if encrypted:
        pair = Pair(tmp_path, "tls", names="DNS:sia.example")
        text += f'[tls]\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n'
    config = written(tmp_path, text, "sia.toml")
    with service(tmp_path, [sia_here(), "serve", "--config", str(config)]):
        assert healthy(config) == (0, "")
    code, said = healthy(config)
    assert code == 1
    assert "refused" in said


def test_the_health_check_fails_without_a_readable_configuration(tmp_path):
    code, said = healthy(tmp_path / "none.toml")
    assert code == 1
    assert "none.toml" in said
    assert "Traceback" not in said
